output "task_role_arn" {
  value = aws_iam_role.task.arn
  # A role without its policy would fail the first task.
  depends_on = [aws_iam_role_policy_attachment.task]
}

output "task_role_name" {
  value = aws_iam_role.task.name
}

output "task_policy_arn" {
  value = aws_iam_policy.task.arn
}

output "submit_policy_arn" {
  value = aws_iam_policy.submit.arn
}

output "task_policy" {
  value       = local.task_policy
  description = "What tasks may do."
}

output "submit_policy" {
  value       = local.submit_policy
  description = "What those who start runs may do as well."
}
