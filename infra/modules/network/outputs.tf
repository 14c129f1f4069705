output "vpc_id" {
  value = aws_vpc.this.id
}

output "vpc_cidr" {
  value = local.cidr
}

output "gang_subnet_id" {
  value       = aws_subnet.gang.id
  description = "Private subnet in the gang's zone."
}

output "subnet_ids" {
  value       = [aws_subnet.gang.id, aws_subnet.second.id]
  description = "Private subnets in two zones, the gang's first."
}

output "gang_security_group_id" {
  value = aws_security_group.gang.id

  # A machine that starts before these rules could not reach its peers.
  depends_on = [
    aws_vpc_security_group_ingress_rule.gang_self,
    aws_vpc_security_group_egress_rule.gang_self,
    aws_vpc_security_group_egress_rule.gang_vpc,
    aws_vpc_security_group_egress_rule.gang_https,
  ]
}

output "default_security_group_id" {
  value = aws_default_security_group.this.id
}
