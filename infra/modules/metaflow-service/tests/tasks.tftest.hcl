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
  client_security_group_ids = { gang = "sg-gang" }
  bucket                    = "convoy-bucket"
  bucket_arn                = "arn:aws:s3:::convoy-bucket"
  keep_data                 = true
}

run "tasks" {
  command = apply

  # Migration precedes the service.
  assert {
    condition     = { for each in jsondecode(aws_ecs_task_definition.this["metadata"].container_definitions) : each.name => [each.essential, try(each.dependsOn, [])] } == { migration = [false, []], metadata = [true, [{ containerName = "migration", condition = "SUCCESS" }]] }
    error_message = "The metadata service must start after the migration has succeeded."
  }
  assert {
    condition     = [for each in jsondecode(aws_ecs_task_definition.this["metadata"].container_definitions) : each.command if each.name == "migration"] == [["/opt/latest/bin/python3", "/root/run_goose.py"]]
    error_message = "The migration must run goose, on databases that are not empty too."
  }

  # Environment is that of the file.
  assert {
    condition = { for each in concat([for task in aws_ecs_task_definition.this : jsondecode(task.container_definitions)]...) : each.name => { for variable in each.environment : variable.name => variable.value } } == {
      for name, service in jsondecode(replace(replace(replace(replace(file("environment.json"), "$${DB_HOST}", "database.internal"), "$${DB_SSL_MODE}", "require"), "$${DATASTORE_ROOT}", "s3://convoy-bucket/metaflow"), "$${UI_API}", "/api")).services : name => service.environment
    }
    error_message = "Each container must have the environment of environment.json, and no other."
  }
  assert {
    condition = { for each in concat([for task in aws_ecs_task_definition.this : jsondecode(task.container_definitions)]...) : each.name => try(each.command, null) } == {
      for name, service in jsondecode(file("environment.json")).services : name => try(service.command, null)
    }
    error_message = "Each container must have the command of environment.json."
  }

  # Password is a secret.
  assert {
    condition = { for each in concat([for task in aws_ecs_task_definition.this : jsondecode(task.container_definitions)]...) : each.name => [for secret in try(each.secrets, []) : "${secret.name} = ${secret.valueFrom}"] } == {
      for name, service in local.services : name => [for secret in ["MF_METADATA_DB_PSWD"] : "${secret} = arn:aws:secretsmanager:eu-west-1:123456789012:secret:rds!db-1:password::" if can(service.environment.MF_METADATA_DB_HOST)]
    }
    error_message = "Containers that use the database must read its password from the secret, the others not."
  }

  # A task with an old password is replaced.
  assert {
    condition     = { for each in concat([for task in aws_ecs_task_definition.this : jsondecode(task.container_definitions)]...) : each.name => strcontains(try(each.healthCheck.command[3], ""), "psycopg2.connect(") } == { migration = false, metadata = true, ui-backend = true, ui = false }
    error_message = "The check of each container that keeps connections must open a new one."
  }

  # Images are the pinned ones.
  assert {
    condition     = { for each in concat([for task in aws_ecs_task_definition.this : jsondecode(task.container_definitions)]...) : each.name => each.image } == merge({ for name in ["migration", "metadata", "ui-backend"] : name => local.images["metaflow-service"] }, { ui = local.images["metaflow-ui"] })
    error_message = "The images must be those of versions.json."
  }
  assert {
    condition     = alltrue([for image in [local.images["metaflow-service"], local.images["metaflow-ui"]] : can(regex(":v[0-9]+\\.[0-9]+\\.[0-9]+$", image))])
    error_message = "The images must be of one version."
  }

  # Rights.
  assert {
    condition     = aws_ecs_task_definition.this["metadata"].task_role_arn == null && aws_ecs_task_definition.this["ui"].task_role_arn == aws_iam_role.ui.arn
    error_message = "The metadata service must have no role."
  }
  assert {
    condition = jsondecode(aws_iam_role_policy.ui.policy).Statement == [
      { Sid = "Read", Effect = "Allow", Action = "s3:GetObject", Resource = "arn:aws:s3:::convoy-bucket/metaflow/*" },
      { Sid = "List", Effect = "Allow", Action = "s3:ListBucket", Resource = "arn:aws:s3:::convoy-bucket", Condition = { StringLike = { "s3:prefix" = "metaflow/*" } } },
    ]
    error_message = "The UI may read Metaflow's folder of the bucket, and nothing else."
  }
  assert {
    condition = { for each in jsondecode(aws_iam_role_policy.execution.policy).Statement : each.Sid => [each.Action, each.Resource] } == {
      Logs     = [["logs:CreateLogStream", "logs:PutLogEvents"], "arn:aws:logs:eu-west-1:123456789012:log-group:convoy-metaflow:*"]
      Password = ["secretsmanager:GetSecretValue", "arn:aws:secretsmanager:eu-west-1:123456789012:secret:rds!db-1"]
    }
    error_message = "ECS may write this log and read this secret, and nothing else."
  }

  # Tasks are private and logged.
  assert {
    condition     = alltrue([for service in aws_ecs_service.this : service.network_configuration[0].assign_public_ip == false && service.network_configuration[0].security_groups == toset([aws_security_group.tasks.id])])
    error_message = "Tasks must have no public address."
  }
  assert {
    condition     = { for name, service in aws_ecs_service.this : name => { for each in service.load_balancer : each.container_name => each.container_port } } == { metadata = { metadata = 8080 }, ui = { ui-backend = 8083, ui = 3000 } }
    error_message = "Each served container must be behind the load balancer."
  }
  assert {
    condition     = { for name, each in aws_lb_target_group.this : name => each.health_check[0].path } == { metadata = "/ping", ui-backend = "/api/ping", ui = "/" }
    error_message = "The load balancer must ask each container for a path that it has."
  }
  assert {
    condition     = aws_cloudwatch_log_group.this.retention_in_days == 30 && alltrue([for each in concat([for task in aws_ecs_task_definition.this : jsondecode(task.container_definitions)]...) : each.logConfiguration == { logDriver = "awslogs", options = { awslogs-group = "convoy-metaflow", awslogs-region = "eu-west-1", awslogs-stream-prefix = each.name } }])
    error_message = "Each container must write to the log group, which must forget after a while."
  }
  assert {
    condition     = alltrue([for service in aws_ecs_service.this : service.propagate_tags == "SERVICE"])
    error_message = "Tasks must carry the stack's tag, or `convoy infra left` cannot see them."
  }
}
