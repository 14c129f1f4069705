# An FSx for Lustre file system in the gang's zone, linked to the folder fsx/ of the bucket.

terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.100" }
  }
}

locals {
  # MB/s for each TiB. The smallest file system of this kind that can use EFA has 19,200 GiB, and grows by as much.
  throughput = 250
  efa_gib    = 19200
}

resource "aws_fsx_lustre_file_system" "this" {
  deployment_type             = "PERSISTENT_2"
  storage_type                = "SSD"
  file_system_type_version    = "2.15"
  storage_capacity            = var.gib
  per_unit_storage_throughput = local.throughput
  data_compression_type       = "NONE" # checkpoints hardly compress
  subnet_ids                  = [var.subnet_id]
  security_group_ids          = [aws_security_group.this.id]
  efa_enabled                 = var.efa ? true : null
  tags                        = { Name = var.name }

  # EFA requires it.
  dynamic "metadata_configuration" {
    for_each = var.efa ? [1] : []
    content {
      mode = "AUTOMATIC"
    }
  }

  lifecycle {
    precondition {
      condition     = !var.efa || var.gib % local.efa_gib == 0
      error_message = "fsx_efa = true: with EFA, fsx_gib = ${var.gib} must be a multiple of ${local.efa_gib}."
    }
  }

  depends_on = [
    aws_vpc_security_group_ingress_rule.self,
    aws_vpc_security_group_ingress_rule.clients,
    aws_vpc_security_group_egress_rule.self,
    aws_vpc_security_group_egress_rule.clients,
  ]
}

resource "aws_fsx_data_repository_association" "this" {
  file_system_id       = aws_fsx_lustre_file_system.this.id
  file_system_path     = "/"
  data_repository_path = "s3://${var.bucket}/fsx"

  # What is in the bucket already: the policy below is for later changes only.
  batch_import_meta_data_on_create = true

  s3 {
    auto_import_policy {
      events = ["NEW", "CHANGED", "DELETED"]
    }
    auto_export_policy {
      events = ["NEW", "CHANGED", "DELETED"]
    }
  }
}

resource "aws_security_group" "this" {
  name        = "${var.name}-fsx"
  description = "FSx for Lustre"
  vpc_id      = var.vpc_id
  tags        = { Name = "${var.name}-fsx" }
}

# By ids, not by ports: EFA traffic passes only between groups that let everything through.
resource "aws_vpc_security_group_ingress_rule" "self" {
  security_group_id            = aws_security_group.this.id
  description                  = "File servers among themselves"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.this.id
}

resource "aws_vpc_security_group_egress_rule" "self" {
  security_group_id            = aws_security_group.this.id
  description                  = "File servers among themselves"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.this.id
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  security_group_id            = aws_security_group.this.id
  description                  = "Machines that run tasks"
  ip_protocol                  = "-1"
  referenced_security_group_id = var.client_security_group_id
}

resource "aws_vpc_security_group_egress_rule" "clients" {
  security_group_id            = aws_security_group.this.id
  description                  = "Machines that run tasks"
  ip_protocol                  = "-1"
  referenced_security_group_id = var.client_security_group_id
}

resource "aws_vpc_security_group_ingress_rule" "clients_from_here" {
  security_group_id            = var.client_security_group_id
  description                  = "FSx for Lustre"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.this.id
}

resource "aws_vpc_security_group_egress_rule" "clients_to_here" {
  security_group_id            = var.client_security_group_id
  description                  = "FSx for Lustre"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.this.id
}
