output "service_url" {
  value       = "http://${aws_lb.this.dns_name}:${aws_lb_listener.this["metadata"].port}"
  description = "Metadata service, from inside the VPC."
}

output "ui_url" {
  value       = "http://${aws_lb.this.dns_name}:${aws_lb_listener.this["ui"].port}"
  description = "UI, from inside the VPC or through the launcher's tunnel."
}

output "security_group_id" {
  value       = aws_security_group.balancer.id
  description = "Security group of the load balancer."
}
