# Two tasks, so that the UI, which reads cards of any size, cannot take down what training depends on.

locals {
  password = [{
    name      = "MF_METADATA_DB_PSWD"
    valueFrom = "${aws_db_instance.this.master_user_secret[0].secret_arn}:password::"
  }]

  # RDS replaces the password every seven days, and a task reads it only when it starts. The connections of the services
  # stay open, so a check by one of them would notice nothing; this one opens a new connection. ECS then starts a task
  # that reads the new password, and ends the old one.
  health = {
    command  = ["CMD", "/opt/latest/bin/python3", "-c", "import psycopg2, services.utils as utils; psycopg2.connect(utils.DBConfiguration().get_dsn(), connect_timeout=5)"]
    interval = 60
    timeout  = 15
    retries  = 3
  }

  # What the containers of environment.json need besides. Those with `essential = false` may end.
  containers = {
    migration  = { image = local.images["metaflow-service"], essential = false, secrets = local.password }
    metadata   = { image = local.images["metaflow-service"], essential = true, secrets = local.password, healthCheck = local.health, dependsOn = [{ containerName = "migration", condition = "SUCCESS" }] }
    ui-backend = { image = local.images["metaflow-service"], essential = true, secrets = local.password, healthCheck = local.health }
    ui         = { image = local.images["metaflow-ui"], essential = true }
  }

  tasks = {
    metadata = {
      cpu           = 512
      memory        = 1024
      containers    = ["migration", "metadata"]
      served        = ["metadata"]
      task_role_arn = null # It calls no AWS service.
    }
    ui = {
      cpu           = 1024
      memory        = 4096
      containers    = ["ui-backend", "ui"]
      served        = ["ui-backend", "ui"]
      task_role_arn = aws_iam_role.ui.arn
    }
  }
}

resource "aws_ecs_task_definition" "this" {
  for_each                 = local.tasks
  family                   = "${var.name}-metaflow-${each.key}"
  requires_compatibilities = ["FARGATE"]
  network_mode             = "awsvpc"
  cpu                      = each.value.cpu
  memory                   = each.value.memory
  execution_role_arn       = aws_iam_role.execution.arn
  task_role_arn            = each.value.task_role_arn
  tags                     = { Name = "${var.name}-metaflow-${each.key}" }

  runtime_platform {
    operating_system_family = "LINUX"
    cpu_architecture        = "X86_64" # The only one that the service's image is built for.
  }

  container_definitions = jsonencode([
    for name in each.value.containers : merge(
      local.containers[name],
      {
        name         = name
        environment  = [for key, value in local.services[name].environment : { name = key, value = value }]
        portMappings = [for port in [for served, port in local.ports : port if served == name] : { containerPort = port, hostPort = port, protocol = "tcp" }]
        logConfiguration = {
          logDriver = "awslogs"
          options = {
            awslogs-group         = aws_cloudwatch_log_group.this.name
            awslogs-region        = data.aws_region.current.name
            awslogs-stream-prefix = name
          }
        }
      },
      # The UI's image starts nginx by itself.
      { for key, value in local.services[name] : key => value if key == "command" },
    )
  ])
}

# A rollback by ECS (`deployment_circuit_breaker`) would end the first deployment for good if its tasks started before the
# NAT gateway works. Without it, ECS goes on trying.
resource "aws_ecs_service" "this" {
  for_each        = local.tasks
  name            = each.key
  cluster         = aws_ecs_cluster.this.id
  task_definition = aws_ecs_task_definition.this[each.key].arn
  launch_type     = "FARGATE"
  desired_count   = 1
  propagate_tags  = "SERVICE"
  tags            = { Name = "${var.name}-metaflow-${each.key}" }

  # The UI's backend waits up to five minutes for the tables (MF_SERVICE_CONNECTION_RETRIES) while the other task creates
  # them.
  health_check_grace_period_seconds = 360

  network_configuration {
    subnets          = var.subnet_ids
    security_groups  = [aws_security_group.tasks.id]
    assign_public_ip = false
  }

  dynamic "load_balancer" {
    for_each = each.value.served
    content {
      container_name   = load_balancer.value
      container_port   = local.ports[load_balancer.value]
      target_group_arn = aws_lb_target_group.this[load_balancer.value].arn
    }
  }

  # ECS refuses a target group that no listener uses.
  depends_on = [aws_lb_listener.this, aws_lb_listener_rule.api, aws_iam_role_policy.execution]
}
