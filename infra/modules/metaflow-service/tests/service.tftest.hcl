mock_provider "aws" {
  mock_data "aws_region" {
    defaults = { name = "eu-west-1" }
  }
  mock_resource "aws_db_instance" {
    defaults = {
      address            = "database.internal"
      master_user_secret = [{ kms_key_id = "", secret_arn = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:rds!db-1", secret_status = "active" }]
    }
  }
  mock_resource "aws_lb" {
    defaults = {
      arn      = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:loadbalancer/app/convoy/1"
      dns_name = "internal-convoy.elb.amazonaws.com"
    }
  }
  mock_resource "aws_lb_listener" {
    defaults = { arn = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:listener/app/convoy/1/2" }
  }
  mock_resource "aws_lb_target_group" {
    defaults = { arn = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/convoy/1" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/convoy" }
  }
  mock_resource "aws_ecs_cluster" {
    defaults = { id = "arn:aws:ecs:eu-west-1:123456789012:cluster/convoy" }
  }
  mock_resource "aws_ecs_task_definition" {
    defaults = { arn = "arn:aws:ecs:eu-west-1:123456789012:task-definition/convoy:1" }
  }
  mock_resource "aws_cloudwatch_log_group" {
    defaults = { arn = "arn:aws:logs:eu-west-1:123456789012:log-group:convoy-metaflow" }
  }
}

variables {
  name                      = "convoy"
  vpc_id                    = "vpc-1"
  vpc_cidr                  = "10.0.0.0/16"
  subnet_ids                = ["subnet-1", "subnet-2"]
  client_security_group_ids = { gang = "sg-gang", launcher = "sg-launcher" }
  bucket                    = "convoy-bucket"
  bucket_arn                = "arn:aws:s3:::convoy-bucket"
  keep_data                 = true
}

run "service" {
  command = apply

  # Database is private encrypted and backed up.
  assert {
    condition     = aws_db_instance.this.publicly_accessible == false && aws_db_instance.this.storage_encrypted && aws_db_instance.this.backup_retention_period == 7
    error_message = "The database must be private, encrypted and backed up."
  }
  assert {
    condition     = aws_db_instance.this.manage_master_user_password && aws_db_instance.this.password == null
    error_message = "RDS must make the password."
  }
  assert {
    condition     = aws_db_instance.this.parameter_group_name == aws_db_parameter_group.this.name && [for each in aws_db_parameter_group.this.parameter : each.value if each.name == "rds.force_ssl"] == ["1"]
    error_message = "The database must refuse connections without TLS."
  }
  assert {
    condition     = aws_db_parameter_group.this.family == "postgres${aws_db_instance.this.engine_version}" && endswith(local.images.postgres, ":${aws_db_instance.this.engine_version}")
    error_message = "The parameter group and the local database must be of the database's major version."
  }
  assert {
    condition     = aws_db_instance.this.db_name == "metaflow" && aws_db_instance.this.username == "metaflow" && aws_db_instance.this.port == 5432
    error_message = "The database must be the one that environment.json names."
  }

  # Destroy leaves a snapshot.
  assert {
    condition     = aws_db_instance.this.skip_final_snapshot == false && can(regex("^convoy-metaflow-[0-9]{14}$", aws_db_instance.this.final_snapshot_identifier))
    error_message = "Destroy must leave a snapshot whose name is unique."
  }

  # Only clients reach the balancer and only tasks the database.
  assert {
    condition     = aws_lb.this.internal && aws_lb.this.security_groups == toset([aws_security_group.balancer.id])
    error_message = "The load balancer must be internal and in its own group alone."
  }
  assert {
    condition = { for key, rule in aws_vpc_security_group_ingress_rule.clients : key => "${rule.referenced_security_group_id}:${rule.from_port}-${rule.to_port}" } == {
      gang-metadata     = "sg-gang:8080-8080"
      gang-ui           = "sg-gang:3000-3000"
      launcher-metadata = "sg-launcher:8080-8080"
      launcher-ui       = "sg-launcher:3000-3000"
    }
    error_message = "Only the given groups may reach the listeners."
  }
  assert {
    condition     = alltrue([for rule in concat(values(aws_vpc_security_group_ingress_rule.clients), values(aws_vpc_security_group_ingress_rule.tasks), [aws_vpc_security_group_ingress_rule.database]) : rule.cidr_ipv4 == null && rule.cidr_ipv6 == null && rule.ip_protocol == "tcp"])
    error_message = "No ingress rule may be for addresses."
  }
  assert {
    condition     = length(aws_security_group.balancer.ingress) + length(aws_security_group.tasks.ingress) + length(aws_security_group.database.ingress) == 0
    error_message = "No group may have further ingress rules."
  }
  assert {
    condition     = toset([for rule in aws_vpc_security_group_ingress_rule.tasks : rule.from_port]) == toset([8080, 8083, 3000]) && alltrue([for rule in aws_vpc_security_group_ingress_rule.tasks : rule.referenced_security_group_id == aws_security_group.balancer.id])
    error_message = "The load balancer alone may reach the tasks."
  }
  assert {
    condition     = aws_vpc_security_group_ingress_rule.database.from_port == 5432 && aws_vpc_security_group_ingress_rule.database.referenced_security_group_id == aws_security_group.tasks.id
    error_message = "The tasks alone may reach the database."
  }
  assert {
    condition     = alltrue([for rule in aws_vpc_security_group_egress_rule.balancer : rule.cidr_ipv4 == "10.0.0.0/16"])
    error_message = "The load balancer must send nothing out of the VPC."
  }

  # Ui and its backend share one address.
  assert {
    condition     = { for name, each in aws_lb_listener.this : name => each.port } == { metadata = 8080, ui = 3000 }
    error_message = "There must be one listener for the metadata service and one for the UI."
  }
  assert {
    condition     = jsonencode([for each in aws_lb_listener_rule.api.condition : each.path_pattern[0].values]) == jsonencode([["/api/*"]]) && local.services["ui-backend"].environment.PATH_PREFIX == "/api"
    error_message = "The path of the backend must be the one that it serves."
  }
  assert {
    condition     = output.service_url == "http://internal-convoy.elb.amazonaws.com:8080" && output.ui_url == "http://internal-convoy.elb.amazonaws.com:3000"
    error_message = "service_url = ${output.service_url}, ui_url = ${output.ui_url}"
  }
  assert {
    condition     = output.security_group_id == aws_security_group.balancer.id
    error_message = "The group must be the load balancer's."
  }
}

run "destroy_leaves_nothing" {
  command = plan

  variables {
    keep_data = false
  }
  assert {
    condition     = aws_db_instance.this.skip_final_snapshot
    error_message = "Destroy must leave no snapshot."
  }
}
