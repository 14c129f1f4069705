resource "aws_security_group" "balancer" {
  name        = "${var.name}-metaflow-balancer"
  description = "Load balancer of the metadata service and the UI"
  vpc_id      = var.vpc_id
  tags        = { Name = "${var.name}-metaflow-balancer" }
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each = merge([
    for client, group in var.client_security_group_ids : {
      for name, listener in aws_lb_listener.this : "${client}-${name}" => { group = group, port = local.ports[name] }
    }
  ]...)
  security_group_id            = aws_security_group.balancer.id
  description                  = each.key
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
  referenced_security_group_id = each.value.group
}

resource "aws_vpc_security_group_egress_rule" "balancer" {
  for_each          = local.ports
  security_group_id = aws_security_group.balancer.id
  description       = "Container ${each.key}"
  ip_protocol       = "tcp"
  from_port         = each.value
  to_port           = each.value
  cidr_ipv4         = var.vpc_cidr
}

resource "aws_security_group" "tasks" {
  name        = "${var.name}-metaflow-tasks"
  description = "Tasks of the metadata service and the UI"
  vpc_id      = var.vpc_id
  tags        = { Name = "${var.name}-metaflow-tasks" }
}

resource "aws_vpc_security_group_ingress_rule" "tasks" {
  for_each                     = local.ports
  security_group_id            = aws_security_group.tasks.id
  description                  = "Container ${each.key}"
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value
  referenced_security_group_id = aws_security_group.balancer.id
}

resource "aws_vpc_security_group_egress_rule" "tasks_https" {
  security_group_id = aws_security_group.tasks.id
  description       = "AWS and the registries of the images"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = "0.0.0.0/0"
}

resource "aws_vpc_security_group_egress_rule" "tasks_database" {
  security_group_id            = aws_security_group.tasks.id
  description                  = "Database"
  ip_protocol                  = "tcp"
  from_port                    = aws_db_instance.this.port
  to_port                      = aws_db_instance.this.port
  referenced_security_group_id = aws_security_group.database.id
}

resource "aws_security_group" "database" {
  name        = "${var.name}-metaflow-database"
  description = "Database of the metadata service"
  vpc_id      = var.vpc_id
  tags        = { Name = "${var.name}-metaflow-database" }
}

resource "aws_vpc_security_group_ingress_rule" "database" {
  security_group_id            = aws_security_group.database.id
  description                  = "Tasks of the metadata service and the UI"
  ip_protocol                  = "tcp"
  from_port                    = aws_db_instance.this.port
  to_port                      = aws_db_instance.this.port
  referenced_security_group_id = aws_security_group.tasks.id
}
