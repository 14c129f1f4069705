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
  instance_types       = ["p5.48xlarge"]
  max_nodes            = 4
  budget_usd_per_month = 50000
  budget_email         = "ml@example.com"
}

run "type_not_in_the_zone" {
  command = plan
  variables { instance_types = ["p4de.24xlarge"] }
  expect_failures = [data.aws_ec2_instance_type_offerings.zone]
}
