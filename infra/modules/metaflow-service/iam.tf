locals {
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ecs-tasks.amazonaws.com" }
    }]
  })
}

# What ECS itself does for a task. Both images come from public registries, so it needs no right to pull.
resource "aws_iam_role" "execution" {
  name               = "${var.name}-metaflow-execution"
  assume_role_policy = local.assume_role_policy
  tags               = { Name = "${var.name}-metaflow-execution" }
}

resource "aws_iam_role_policy" "execution" {
  name = "start-tasks"
  role = aws_iam_role.execution.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "Logs"
        Effect   = "Allow"
        Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
        Resource = "${aws_cloudwatch_log_group.this.arn}:*"
      },
      {
        # The secret is encrypted with AWS's own key of Secrets Manager, which asks for no right of its own.
        Sid      = "Password"
        Effect   = "Allow"
        Action   = "secretsmanager:GetSecretValue"
        Resource = aws_db_instance.this.master_user_secret[0].secret_arn
      },
    ]
  })
}

# The UI's backend shows cards, logs and artifacts.
resource "aws_iam_role" "ui" {
  name               = "${var.name}-metaflow-ui"
  assume_role_policy = local.assume_role_policy
  tags               = { Name = "${var.name}-metaflow-ui" }
}

resource "aws_iam_role_policy" "ui" {
  name = "read-metaflow"
  role = aws_iam_role.ui.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "Read"
        Effect   = "Allow"
        Action   = "s3:GetObject"
        Resource = "${var.bucket_arn}/metaflow/*"
      },
      {
        Sid       = "List"
        Effect    = "Allow"
        Action    = "s3:ListBucket"
        Resource  = var.bucket_arn
        Condition = { StringLike = { "s3:prefix" = "metaflow/*" } }
      },
    ]
  })
}
