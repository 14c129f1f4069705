# What each option changes.

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

run "reserved" {
  command = apply
  variables {
    instance_types = ["p4d.24xlarge", "p5.48xlarge"]
    market         = "reserved"
    reservations = {
      "p4d.24xlarge" = { id = "cr-0123456789abcdef0", count = 4, kind = "reservation" }
      "p5.48xlarge"  = { id = "cr-0fedcba9876543210", count = 8, kind = "capacity_block" }
    }
  }
  assert {
    condition     = aws_launch_template.gpu["p5.48xlarge"].capacity_reservation_specification[0].capacity_reservation_target[0].capacity_reservation_id == "cr-0fedcba9876543210"
    error_message = "machines start in their reservation"
  }
  assert {
    condition     = aws_launch_template.gpu["p5.48xlarge"].instance_market_options[0].market_type == "capacity-block" && length(aws_launch_template.gpu["p4d.24xlarge"].instance_market_options) == 0
    error_message = "a capacity block is a market of its own, a reservation is not"
  }
  assert {
    condition     = alltrue([for each in values(aws_batch_compute_environment.gpu) : each.compute_resources[0].placement_group == null])
    error_message = "a reservation decides where its machines are"
  }
  assert {
    condition     = jsonencode(output.convoy.pools[*].market) == jsonencode(["on_demand", "capacity_block"])
    error_message = "the markets of Convoy's configuration"
  }
}

run "with_a_schedule_and_a_file_system_without_keeping_data" {
  command = apply
  variables {
    schedule  = { expression = "cron(0 6 ? * MON *)", config = "../../configs/bench/p4d.yaml" }
    fsx_gib   = 2400
    keep_data = false
  }
  assert {
    condition     = jsondecode(aws_scheduler_schedule.benchmark[0].target[0].input).JobQueue == aws_batch_job_queue.cpu.arn
    error_message = "the flow starts on a CPU machine"
  }
  assert {
    condition     = strcontains(join(" ", jsondecode(aws_batch_job_definition.benchmark[0].container_properties).command), "python flows/benchmark_flow.py")
    error_message = "it is the command that people type"
  }
  assert {
    condition = contains(jsondecode(aws_batch_job_definition.benchmark[0].container_properties).environment, {
      name = "METAFLOW_SERVICE_URL", value = "http://metaflow.internal:8080"
    })
    error_message = "the task is in the VPC, where the service has its own address"
  }
  assert {
    condition     = jsonencode(output.convoy.host_volumes) == jsonencode(["/fsx"])
    error_message = "tasks see the file system"
  }
  assert {
    condition     = output.convoy.file_system == { gib = 2400, mb_per_second_per_tib = 250 }
    error_message = "its size and throughput class, which it is paid for by"
  }
  assert {
    condition     = strcontains(base64decode(aws_launch_template.gpu["p4d.24xlarge"].user_data), "mount -t lustre") && strcontains(base64decode(aws_launch_template.cpu.user_data), "mount -t lustre")
    error_message = "machines of both queues mount it"
  }
  assert {
    condition     = alltrue([for each in [aws_launch_template.gpu["p4d.24xlarge"], aws_launch_template.cpu] : strcontains(base64decode(each.user_data), "trap 'shutdown -h now' ERR\n")])
    error_message = "a machine without the file system takes no jobs"
  }
  assert {
    condition     = aws_ecr_repository.this.force_delete
    error_message = "images go as well"
  }
}
