# Job queues and what they start: one for each GPU type, and one on CPU machines, Metaflow's default.

locals {
  # A change of a launch template replaces machines. AWS ends jobs that still run on the old ones after this time; the
  # provider takes no more.
  update_minutes = 360

  # Job queues, launch templates and placement groups of the types.
  names = { for name in var.instance_types : name => "${var.name}-${replace(name, ".", "-")}" }

  # A task of an ordinary step takes 4 CPUs and 16 GB.
  cpu_types = ["m7i.2xlarge", "m7i.4xlarge", "m6i.2xlarge", "m6i.4xlarge"]
  cpu_vcpus = 64

  batch_role = (
    var.create_batch_role
    ? aws_iam_service_linked_role.batch[0].arn
    : "arn:aws:iam::${data.aws_caller_identity.current.account_id}:role/aws-service-role/batch.amazonaws.com/AWSServiceRoleForBatch"
  )
}

resource "aws_iam_service_linked_role" "batch" {
  count            = var.create_batch_role ? 1 : 0
  aws_service_name = "batch.amazonaws.com"
}

resource "aws_iam_role" "machine" {
  name        = "${var.name}-machine"
  description = "Machines of AWS Batch: ECS agent, logs, images"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy_attachment" "machine" {
  role       = aws_iam_role.machine.name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AmazonEC2ContainerServiceforEC2Role"
}

resource "aws_iam_instance_profile" "machine" {
  name = aws_iam_role.machine.name
  role = aws_iam_role.machine.name
}

resource "aws_batch_compute_environment" "gpu" {
  for_each                 = toset(var.instance_types)
  compute_environment_name = local.names[each.key]
  type                     = "MANAGED"
  service_role             = local.batch_role

  compute_resources {
    type                = "EC2" # multi-node jobs do not run on spot
    allocation_strategy = "BEST_FIT_PROGRESSIVE"
    instance_type       = [each.key]
    instance_role       = aws_iam_instance_profile.machine.arn
    min_vcpus           = 0
    max_vcpus           = var.max_nodes * module.gpu_nodes.types[each.key].vcpus
    subnets             = [module.network.gang_subnet_id]
    # The groups are those of the launch template's interfaces.
    # A reservation that was not made in the group has no capacity there; it decides itself where its machines are.
    placement_group = var.market == "reserved" ? null : local.names[each.key]
    tags            = local.tags

    ec2_configuration {
      image_type = module.gpu_nodes.types[each.key].gpu == null ? "ECS_AL2023" : "ECS_AL2023_NVIDIA"
    }
    launch_template {
      launch_template_id = aws_launch_template.gpu[each.key].id
      version            = aws_launch_template.gpu[each.key].latest_version
    }
  }

  update_policy {
    terminate_jobs_on_update      = false
    job_execution_timeout_minutes = local.update_minutes
  }

  depends_on = [
    aws_placement_group.gang,
    aws_iam_role_policy_attachment.machine,
  ]
}

resource "aws_batch_compute_environment" "cpu" {
  compute_environment_name = "${var.name}-cpu"
  type                     = "MANAGED"
  service_role             = local.batch_role

  compute_resources {
    type                = "EC2"
    allocation_strategy = "BEST_FIT_PROGRESSIVE"
    instance_type       = local.cpu_types
    instance_role       = aws_iam_instance_profile.machine.arn
    min_vcpus           = 0
    max_vcpus           = local.cpu_vcpus
    subnets             = [module.network.gang_subnet_id]
    security_group_ids  = [module.network.gang_security_group_id]
    tags                = merge(local.tags, { Name = "${var.name}-cpu" })

    ec2_configuration {
      image_type = "ECS_AL2023"
    }
    launch_template {
      launch_template_id = aws_launch_template.cpu.id
      version            = aws_launch_template.cpu.latest_version
    }
  }

  update_policy {
    terminate_jobs_on_update      = false
    job_execution_timeout_minutes = local.update_minutes
  }

  depends_on = [aws_iam_role_policy_attachment.machine]
}

resource "aws_batch_job_queue" "gpu" {
  for_each = toset(var.instance_types)
  name     = local.names[each.key]
  state    = "ENABLED"
  priority = 1

  compute_environment_order {
    order               = 1
    compute_environment = aws_batch_compute_environment.gpu[each.key].arn
  }
}

resource "aws_batch_job_queue" "cpu" {
  name     = "${var.name}-cpu"
  state    = "ENABLED"
  priority = 1

  compute_environment_order {
    order               = 1
    compute_environment = aws_batch_compute_environment.cpu.arn
  }
}
