# What is created, with a provider that creates nothing.

mock_provider "aws" {
  source = "./tests/mocks"
}

override_module {
  target = module.metaflow_service
  outputs = {
    service_url = "http://metaflow.internal:8080"
    ui_url      = "http://metaflow.internal:3000"
  }
}

override_module {
  target = module.launcher
  outputs = {
    security_group_id = "sg-0123456789abcdef1"
    commands          = {}
  }
}

variables {
  region               = "us-east-1"
  availability_zone    = "us-east-1a"
  instance_types       = ["p4d.24xlarge", "p5.48xlarge", "p5en.48xlarge"]
  max_nodes            = 4
  budget_usd_per_month = 50000
  budget_email         = "ml@example.com"
}

run "machines" {
  command = apply

  assert {
    condition = [for each in aws_launch_template.gpu["p4d.24xlarge"].network_interfaces : [each.network_card_index, each.device_index, each.interface_type]] == [
      [0, 0, "interface"], [0, 1, "efa-only"], [1, 0, "efa-only"], [2, 0, "efa-only"], [3, 0, "efa-only"],
    ]
    error_message = "p4d: one interface for IP, and an EFA adapter on each of four cards"
  }
  assert {
    condition = [for each in slice(aws_launch_template.gpu["p5.48xlarge"].network_interfaces, 0, 2) : [each.network_card_index, each.device_index, each.interface_type]] == [
      [0, 0, "efa"], [1, 0, "efa-only"],
    ] && length(aws_launch_template.gpu["p5.48xlarge"].network_interfaces) == 32
    error_message = "p5: the adapter of card 0 is the first interface, so that one place is free for the task's own"
  }
  assert {
    condition     = length([for each in aws_launch_template.gpu["p5en.48xlarge"].network_interfaces : each if each.interface_type == "efa-only"]) == 16
    error_message = "p5en: 16 adapters next to the interface for IP"
  }
  assert {
    condition = alltrue([
      for each in concat(values(aws_launch_template.gpu), [aws_launch_template.cpu]) :
      each.metadata_options[0].http_tokens == "required" && each.metadata_options[0].http_put_response_hop_limit == 2
    ])
    error_message = "IMDSv2 only, and tasks reach it"
  }
  assert {
    condition = alltrue([
      for each in concat(values(aws_launch_template.gpu), [aws_launch_template.cpu]) :
      each.block_device_mappings[0].ebs[0].encrypted == "true"
    ])
    error_message = "volumes are encrypted"
  }
  assert {
    condition = alltrue([
      for each in values(aws_launch_template.gpu) :
      strcontains(base64decode(each.user_data), "text/cloud-boothook") && strcontains(base64decode(each.user_data), "sed -i 's/^OPTIONS=\"/&--default-ulimit memlock=-1:-1 /' /etc/sysconfig/docker\n")
      && !strcontains(base64decode(each.user_data), "ECS_AWSVPC_BLOCK_IMDS")
    ])
    error_message = "Docker's limit of locked memory is raised before it starts, and nothing keeps tasks from the metadata service"
  }
  assert {
    condition     = startswith(base64decode(aws_launch_template.gpu["p4d.24xlarge"].user_data), "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"==convoy==\"\n\n--==convoy==\n")
    error_message = "AWS Batch takes user data as a MIME archive"
  }
  assert {
    condition = alltrue([
      for name, each in aws_batch_compute_environment.gpu :
      each.type == "MANAGED" && each.compute_resources[0].type == "EC2" && each.compute_resources[0].min_vcpus == 0
      && each.compute_resources[0].instance_type == toset([name]) && length(each.compute_resources[0].subnets) == 1
      && each.compute_resources[0].placement_group == aws_placement_group.gang[name].name
      && each.compute_resources[0].ec2_configuration[0].image_type == "ECS_AL2023_NVIDIA"
    ])
    error_message = "machines of one type on demand, in one subnet and one placement group"
  }
  assert {
    condition     = alltrue([for each in values(aws_batch_compute_environment.gpu) : length(coalesce(each.compute_resources[0].security_group_ids, [])) == 0])
    error_message = "AWS takes security groups of the launch template's interfaces or of the environment, not both"
  }
  assert {
    condition     = alltrue([for each in concat(values(aws_batch_compute_environment.gpu), [aws_batch_compute_environment.cpu]) : each.update_policy[0].terminate_jobs_on_update == false && each.update_policy[0].job_execution_timeout_minutes == 360])
    error_message = "an update leaves running jobs six hours"
  }
  assert {
    condition     = alltrue([for each in values(aws_placement_group.gang) : each.strategy == "cluster"])
    error_message = "machines of a gang are near each other"
  }
  assert {
    condition     = aws_batch_compute_environment.gpu["p4d.24xlarge"].compute_resources[0].max_vcpus == 4 * 96
    error_message = "as many machines as max_nodes"
  }
  assert {
    condition     = output.convoy.metaflow.METAFLOW_BATCH_JOB_QUEUE == aws_batch_job_queue.cpu.name && !contains(output.convoy.pools[*].queue, aws_batch_job_queue.cpu.name)
    error_message = "Metaflow's default queue is the one on CPU machines"
  }
  assert {
    condition     = output.convoy.root == "s3://convoy-123456789012-us-east-1/convoy" && length(output.convoy.host_volumes) == 0
    error_message = "jobs live in the bucket"
  }
  assert {
    condition     = output.usd_per_hour.on_demand[0].low == 4 * 21.9576 && output.usd_per_hour.on_demand[0].date == "2026-11-09"
    error_message = "four p4d at the newest price known, with its date"
  }
  assert {
    condition     = length(aws_scheduler_schedule.benchmark) == 0 && length(module.fsx) == 0
    error_message = "nothing optional unless it is asked for"
  }
}
