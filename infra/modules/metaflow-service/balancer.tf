# An application load balancer, because it can route by path: the UI and its backend share one port, so a browser sees one
# origin and a person needs one tunnel for both. A network load balancer cannot do that.
#
# Plain HTTP: no public authority gives certificates for an internal name. Traffic stays in the VPC, or in the encrypted
# tunnel of a session.

resource "aws_lb" "this" {
  name                       = "${var.name}-metaflow"
  internal                   = true
  load_balancer_type         = "application"
  subnets                    = var.subnet_ids
  security_groups            = [aws_security_group.balancer.id]
  drop_invalid_header_fields = true
  idle_timeout               = 3600 # The UI's websockets send nothing while no run changes.
  tags                       = { Name = "${var.name}-metaflow" }
}

resource "aws_lb_target_group" "this" {
  for_each             = local.ports
  name                 = "${var.name}-${each.key}"
  vpc_id               = var.vpc_id
  target_type          = "ip"
  protocol             = "HTTP"
  port                 = each.value
  deregistration_delay = 30
  tags                 = { Name = "${var.name}-${each.key}" }

  health_check {
    path                = { metadata = "/ping", ui-backend = "/api/ping", ui = "/" }[each.key]
    matcher             = "200"
    interval            = 30
    timeout             = 10
    healthy_threshold   = 2
    unhealthy_threshold = 3
  }
}

resource "aws_lb_listener" "this" {
  for_each          = { for name in ["metadata", "ui"] : name => local.ports[name] }
  load_balancer_arn = aws_lb.this.arn
  protocol          = "HTTP"
  port              = each.value
  tags              = { Name = "${var.name}-${each.key}" }

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.this[each.key].arn
  }
}

resource "aws_lb_listener_rule" "api" {
  listener_arn = aws_lb_listener.this["ui"].arn
  priority     = 1
  tags         = { Name = "${var.name}-ui-backend" }

  action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.this["ui-backend"].arn
  }
  condition {
    path_pattern {
      values = ["/api/*"]
    }
  }
}
