# What Batch starts machines with.

locals {
  # A machine without the file system must not take jobs: Docker would make an empty folder in its place.
  mount_fsx = var.fsx_gib == 0 ? "" : <<-EOT
    trap 'shutdown -h now' ERR
    for _ in 1 2 3 4 5; do dnf install -y lustre-client && break || sleep 10; done
    mkdir -p /fsx
    ${one(module.fsx[*].mount_command)}
    chmod 1777 /fsx
  EOT

  # A boothook runs before Docker starts. EFA pins memory, and neither Metaflow nor a multi-node job can raise the limit of
  # a container, so the daemon's default must be unlimited. The other options of the image are kept.
  user_data = <<-EOT
    MIME-Version: 1.0
    Content-Type: multipart/mixed; boundary="==convoy=="

    --==convoy==
    Content-Type: text/cloud-boothook; charset="us-ascii"

    #!/bin/bash
    cloud-init-per once memlock sed -i 's/^OPTIONS="/&--default-ulimit memlock=-1:-1 /' /etc/sysconfig/docker
    grep -q memlock /etc/sysconfig/docker || echo 'OPTIONS="--default-ulimit memlock=-1:-1"' >> /etc/sysconfig/docker

    --==convoy==
    Content-Type: text/x-shellscript; charset="us-ascii"

    #!/bin/bash
    set -eu
    ${indent(4, local.mount_fsx)}
    --==convoy==--
  EOT

  tags = { "convoy:stack" = var.name }
}

# Cluster placement: machines of one type near each other.
resource "aws_placement_group" "gang" {
  for_each = toset(var.instance_types)
  name     = local.names[each.key]
  strategy = "cluster"
}

resource "aws_launch_template" "gpu" {
  for_each  = toset(var.instance_types)
  name      = local.names[each.key]
  user_data = base64encode(local.user_data)

  # AWS Batch runs each task of a multi-node job in a network namespace of its own, from which the metadata service is a
  # second hop away.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 2
  }

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_size           = 200
      volume_type           = "gp3"
      encrypted             = "true"
      delete_on_termination = "true"
    }
  }

  dynamic "network_interfaces" {
    for_each = module.gpu_nodes.interfaces[each.key]
    content {
      network_card_index    = network_interfaces.value.network_card_index
      device_index          = network_interfaces.value.device_index
      interface_type        = network_interfaces.value.interface_type
      security_groups       = [module.network.gang_security_group_id]
      delete_on_termination = "true"
    }
  }

  dynamic "instance_market_options" {
    for_each = try(var.reservations[each.key].kind, "") == "capacity_block" ? [1] : []
    content {
      market_type = "capacity-block"
    }
  }

  dynamic "capacity_reservation_specification" {
    for_each = contains(keys(var.reservations), each.key) ? [var.reservations[each.key].id] : []
    content {
      capacity_reservation_target {
        capacity_reservation_id = capacity_reservation_specification.value
      }
    }
  }

  dynamic "tag_specifications" {
    for_each = ["instance", "volume", "network-interface"]
    content {
      resource_type = tag_specifications.value
      tags          = merge(local.tags, { Name = local.names[each.key] })
    }
  }
}

resource "aws_launch_template" "cpu" {
  name      = "${var.name}-cpu"
  user_data = base64encode(local.user_data)

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 2
  }

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_size           = 100
      volume_type           = "gp3"
      encrypted             = "true"
      delete_on_termination = "true"
    }
  }

  dynamic "tag_specifications" {
    for_each = ["instance", "volume", "network-interface"]
    content {
      resource_type = tag_specifications.value
      tags          = merge(local.tags, { Name = "${var.name}-cpu" })
    }
  }
}
