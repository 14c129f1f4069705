# The group of all machines that run tasks.

resource "aws_security_group" "gang" {
  name        = "${var.name}-gang"
  description = "Machines that run tasks"
  vpc_id      = aws_vpc.this.id
  tags        = { Name = "${var.name}-gang" }
}

# EFA needs all traffic from and to the group by its id, both ways. A rule for 0.0.0.0/0 does not let EFA traffic out.
resource "aws_vpc_security_group_ingress_rule" "gang_self" {
  security_group_id            = aws_security_group.gang.id
  description                  = "All traffic of the gang, EFA included"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.gang.id
}

resource "aws_vpc_security_group_egress_rule" "gang_self" {
  security_group_id            = aws_security_group.gang.id
  description                  = "All traffic of the gang, EFA included"
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.gang.id
}

resource "aws_vpc_security_group_egress_rule" "gang_vpc" {
  security_group_id = aws_security_group.gang.id
  description       = "File system, metadata service, cluster"
  ip_protocol       = "-1"
  cidr_ipv4         = local.cidr
}

resource "aws_vpc_security_group_egress_rule" "gang_https" {
  security_group_id = aws_security_group.gang.id
  description       = "AWS, registries and package indexes"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = "0.0.0.0/0"
}
