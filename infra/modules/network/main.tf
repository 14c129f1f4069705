# A VPC whose gang machines share one zone, without public addresses. Checkpoints reach S3 through a gateway endpoint, so
# they cost nothing per byte and never pass the NAT gateway.

terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.100" }
  }
}

data "aws_region" "current" {}

data "aws_availability_zones" "available" {
  state = "available"
  # The EKS control plane cannot be in these.
  exclude_zone_ids = ["use1-az3", "usw1-az2", "cac1-az3"]

  # No Local Zones: they have neither RDS nor EKS.
  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }
}

locals {
  cidr = "10.0.0.0/16"
  # RDS and the EKS control plane need a second zone. No machine of a gang starts there.
  second_zone = [for zone in data.aws_availability_zones.available.names : zone if zone != var.availability_zone][0]
}

resource "aws_vpc" "this" {
  cidr_block           = local.cidr
  enable_dns_hostnames = true
  tags                 = { Name = var.name }

  lifecycle {
    precondition {
      condition     = contains(data.aws_availability_zones.available.names, var.availability_zone)
      error_message = "availability_zone = ${var.availability_zone}: must be a zone of ${data.aws_region.current.name} that this stack can use: ${join(", ", data.aws_availability_zones.available.names)}."
    }
  }
}

# Without rules of its own it would let everything in from itself, and out to everywhere. AWS Batch puts the interface of
# a multi-node job's task into it: a compute environment whose launch template has network interfaces may name no group.
resource "aws_default_security_group" "this" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = "${var.name}-default" }

  dynamic "ingress" {
    for_each = var.has_task_interfaces ? ["Other tasks of the gang"] : []
    content {
      description = ingress.value
      protocol    = "-1"
      from_port   = 0
      to_port     = 0
      self        = true
    }
  }

  dynamic "egress" {
    for_each = var.has_task_interfaces ? ["Other tasks of the gang, and the metadata service"] : []
    content {
      description = egress.value
      protocol    = "-1"
      from_port   = 0
      to_port     = 0
      cidr_blocks = [local.cidr]
    }
  }

  dynamic "egress" {
    for_each = var.has_task_interfaces ? ["AWS, registries and package indexes"] : []
    content {
      description = egress.value
      protocol    = "tcp"
      from_port   = 443
      to_port     = 443
      cidr_blocks = ["0.0.0.0/0"]
    }
  }
}

resource "aws_subnet" "gang" {
  vpc_id                  = aws_vpc.this.id
  map_public_ip_on_launch = false
  availability_zone       = var.availability_zone
  cidr_block              = cidrsubnet(local.cidr, 1, 1)
  tags                    = { Name = "${var.name}-gang" }
}

resource "aws_subnet" "second" {
  vpc_id                  = aws_vpc.this.id
  map_public_ip_on_launch = false
  availability_zone       = local.second_zone
  cidr_block              = cidrsubnet(local.cidr, 4, 1)
  tags                    = { Name = "${var.name}-second" }

  lifecycle {
    # AWS's list of zones changes; the database and the control plane stay.
    ignore_changes = [availability_zone]
  }
}

resource "aws_subnet" "nat" {
  vpc_id                  = aws_vpc.this.id
  map_public_ip_on_launch = false
  availability_zone       = var.availability_zone
  cidr_block              = cidrsubnet(local.cidr, 8, 0)
  tags                    = { Name = "${var.name}-nat" }
}

resource "aws_internet_gateway" "this" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = var.name }
}

resource "aws_eip" "nat" {
  domain = "vpc"
  tags   = { Name = "${var.name}-nat" }
}

resource "aws_nat_gateway" "this" {
  allocation_id = aws_eip.nat.id
  subnet_id     = aws_subnet.nat.id
  tags          = { Name = var.name }
  depends_on    = [aws_internet_gateway.this]
}

resource "aws_route_table" "nat" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = "${var.name}-nat" }
}

resource "aws_route" "internet" {
  route_table_id         = aws_route_table.nat.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this.id
}

resource "aws_route_table_association" "nat" {
  subnet_id      = aws_subnet.nat.id
  route_table_id = aws_route_table.nat.id
}

resource "aws_route_table" "private" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = "${var.name}-private" }
}

resource "aws_route" "nat" {
  route_table_id         = aws_route_table.private.id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.this.id
}

resource "aws_route_table_association" "private" {
  for_each       = { gang = aws_subnet.gang.id, second = aws_subnet.second.id }
  subnet_id      = each.value
  route_table_id = aws_route_table.private.id
}

resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.this.id
  service_name      = "com.amazonaws.${data.aws_region.current.name}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [aws_route_table.private.id]
  tags              = { Name = "${var.name}-s3" }
}
