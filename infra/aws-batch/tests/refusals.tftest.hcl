# What AWS's answer or a whole module refuses. tests/infra/test_refusals.py has what a variable alone refuses.

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
  instance_types       = ["p4d.24xlarge"]
  max_nodes            = 4
  budget_usd_per_month = 50000
  budget_email         = "ml@example.com"
}

run "type_not_in_the_zone" {
  command = plan
  variables { instance_types = ["g6e.48xlarge"] }
  expect_failures = [data.aws_ec2_instance_type_offerings.zone]
}

run "no_such_zone" {
  command = plan
  module {
    source = "../modules/network"
  }
  variables {
    name              = "convoy"
    availability_zone = "us-east-1f"
  }
  expect_failures = [aws_vpc.this]
}

run "file_system_too_small_for_efa" {
  command = plan
  module {
    source = "../modules/fsx"
  }
  variables {
    name                     = "convoy"
    gib                      = 2400
    efa                      = true
    vpc_id                   = "vpc-1"
    subnet_id                = "subnet-1"
    client_security_group_id = "sg-1"
    bucket                   = "bucket"
  }
  expect_failures = [aws_fsx_lustre_file_system.this]
}
