# Modules by themselves: what the stack does not pass on.

mock_provider "aws" {
  source = "./tests/mocks"
}

run "network" {
  command = apply

  module {
    source = "../modules/network"
  }
  variables {
    name                = "convoy"
    availability_zone   = "us-east-1a"
    has_task_interfaces = true
  }

  assert {
    condition = (
      aws_vpc_security_group_egress_rule.gang_self.referenced_security_group_id == aws_security_group.gang.id
      && aws_vpc_security_group_ingress_rule.gang_self.referenced_security_group_id == aws_security_group.gang.id
      && aws_vpc_security_group_egress_rule.gang_self.ip_protocol == "-1" && aws_vpc_security_group_ingress_rule.gang_self.ip_protocol == "-1"
    )
    error_message = "EFA needs all traffic of the group to and from itself"
  }
  assert {
    condition     = aws_vpc_security_group_egress_rule.gang_https.from_port == 443 && aws_vpc_security_group_egress_rule.gang_https.to_port == 443
    error_message = "out to the world only by HTTPS"
  }
  assert {
    condition     = aws_subnet.gang.availability_zone == "us-east-1a" && aws_subnet.second.availability_zone == "us-east-1b"
    error_message = "machines are in one zone; the second is for the database and the control plane"
  }
  assert {
    condition     = !aws_subnet.gang.map_public_ip_on_launch && !aws_subnet.second.map_public_ip_on_launch
    error_message = "no public addresses"
  }
  assert {
    condition = (
      [for rule in aws_default_security_group.this.ingress : [rule.protocol, rule.self, length(coalesce(rule.cidr_blocks, []))]] == [["-1", true, 0]]
      && toset([for rule in aws_default_security_group.this.egress : one(rule.cidr_blocks)]) == toset(["10.0.0.0/16", "0.0.0.0/0"])
      && [for rule in aws_default_security_group.this.egress : rule.from_port if rule.cidr_blocks == tolist(["0.0.0.0/0"])] == [443]
    )
    error_message = "tasks with interfaces of their own reach each other, and the world only by HTTPS"
  }
  assert {
    condition     = aws_vpc.this.enable_dns_hostnames
    error_message = "machines find each other, the file system and the cluster by name"
  }
  assert {
    condition     = aws_vpc_endpoint.s3.service_name == "com.amazonaws.us-east-1.s3" && aws_vpc_endpoint.s3.route_table_ids == toset([aws_route_table.private.id])
    error_message = "S3 is reached without the NAT gateway"
  }
}

run "datastore" {
  command = apply

  module {
    source = "../modules/datastore"
  }
  variables {
    name      = "convoy"
    keep_data = true
  }

  assert {
    condition     = !aws_s3_bucket.this.force_destroy
    error_message = "data stay"
  }
  assert {
    condition = (
      aws_s3_bucket_public_access_block.this.block_public_acls && aws_s3_bucket_public_access_block.this.block_public_policy
      && aws_s3_bucket_public_access_block.this.ignore_public_acls && aws_s3_bucket_public_access_block.this.restrict_public_buckets
    )
    error_message = "nothing is public"
  }
  assert {
    condition = [
      for each in jsondecode(aws_s3_bucket_policy.this.policy).Statement : [each.Effect, each.Action, each.Condition]
    ] == [["Deny", "s3:*", { Bool = { "aws:SecureTransport" = "false" } }]]
    error_message = "TLS only"
  }
  assert {
    condition     = one(one(aws_s3_bucket_server_side_encryption_configuration.this.rule).apply_server_side_encryption_by_default).sse_algorithm == "aws:kms"
    error_message = "encrypted by KMS"
  }
}

run "file_system_over_efa" {
  command = apply
  module {
    source = "../modules/fsx"
  }
  variables {
    name                     = "convoy"
    gib                      = 19200
    efa                      = true
    vpc_id                   = "vpc-1"
    subnet_id                = "subnet-1"
    client_security_group_id = "sg-1"
    bucket                   = "bucket"
  }
  assert {
    condition     = aws_fsx_data_repository_association.this.batch_import_meta_data_on_create
    error_message = "what is in the bucket is in the file system"
  }
  assert {
    condition     = aws_fsx_lustre_file_system.this.efa_enabled && aws_fsx_lustre_file_system.this.metadata_configuration[0].mode == "AUTOMATIC"
    error_message = "EFA needs metadata configuration"
  }
  assert {
    condition = (
      aws_vpc_security_group_ingress_rule.self.referenced_security_group_id == aws_security_group.this.id
      && aws_vpc_security_group_egress_rule.self.referenced_security_group_id == aws_security_group.this.id
      && aws_vpc_security_group_egress_rule.clients_to_here.referenced_security_group_id == aws_security_group.this.id
    )
    error_message = "EFA traffic passes by group ids"
  }
}
