# A small machine from which runs are started that must outlive a laptop, and the way to the metadata service and the UI.
# Nobody can connect to it: sessions go through AWS Systems Manager, to which the machine itself connects.

terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.100" }
  }
}

data "aws_partition" "current" {}

data "aws_ssm_parameter" "image" {
  name = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
}

locals {
  # [host, port] of http://host:port
  service = regex("^http://([^:/]+):([0-9]+)$", var.service_url)
  ui      = regex("^http://([^:/]+):([0-9]+)$", var.ui_url)

  session = "aws ssm start-session --region ${var.region} --target ${aws_instance.this.id}"
  tunnel  = "${local.session} --document-name AWS-StartPortForwardingSessionToRemoteHost --parameters"
}

resource "aws_instance" "this" {
  ami                    = data.aws_ssm_parameter.image.insecure_value
  instance_type          = "m7i-flex.large" # 8 GiB: Metaflow runs one process for each task that is under way.
  subnet_id              = var.subnet_id
  vpc_security_group_ids = [aws_security_group.this.id]
  iam_instance_profile   = aws_iam_instance_profile.this.name
  ebs_optimized          = true
  tags                   = { Name = "${var.name}-launcher" }

  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = 40
    encrypted   = true
    tags        = { Name = "${var.name}-launcher" }
  }

  # The loop waits for the NAT gateway, which may not work yet when the first stack starts.
  user_data = <<-EOT
    #!/bin/bash
    until dnf install -y git python3.11 python3.11-pip tmux; do sleep 10; done
    cat > /etc/profile.d/metaflow.sh <<'END'
    export AWS_DEFAULT_REGION=${var.region}
    export METAFLOW_SERVICE_URL=${var.service_url}
    END
  EOT

  # A launcher with the address of an older service would be of no use.
  user_data_replace_on_change = true

  lifecycle {
    # A new image of Amazon Linux must not replace a machine from which something runs.
    ignore_changes = [ami]
  }

  # Started without this right, the machine's agent tries again only after minutes.
  depends_on = [aws_iam_role_policy_attachment.session]
}

resource "aws_security_group" "this" {
  name        = "${var.name}-launcher"
  description = "Launcher, which nobody can connect to"
  vpc_id      = var.vpc_id
  tags        = { Name = "${var.name}-launcher" }
}

resource "aws_vpc_security_group_egress_rule" "this" {
  for_each = {
    https   = { port = 443, to = "AWS, package indexes and repositories" }
    service = { port = tonumber(local.service[1]), to = "Metadata service" }
    ui      = { port = tonumber(local.ui[1]), to = "UI" }
  }
  security_group_id = aws_security_group.this.id
  description       = each.value.to
  ip_protocol       = "tcp"
  from_port         = each.value.port
  to_port           = each.value.port
  cidr_ipv4         = "0.0.0.0/0" # The addresses of a load balancer change; its security group decides who gets in.
}
