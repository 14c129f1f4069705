# The benchmark on a schedule. Step Functions refuses @parallel, so EventBridge starts a task on the CPU queue, and that
# task runs the flow.

locals {
  scheduled = var.schedule == null ? 0 : 1
}

resource "aws_iam_role" "benchmark" {
  count       = local.scheduled
  name        = "${var.name}-benchmark"
  description = "The scheduled task, which starts the benchmark flow"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ecs-tasks.amazonaws.com" }
      Action    = "sts:AssumeRole"
      Condition = { StringEquals = { "aws:SourceAccount" = data.aws_caller_identity.current.account_id } }
    }]
  })
}

resource "aws_iam_role_policy_attachment" "benchmark" {
  for_each   = var.schedule == null ? {} : { task = module.iam.task_policy_arn, submit = module.iam.submit_policy_arn }
  role       = aws_iam_role.benchmark[0].name
  policy_arn = each.value
}

resource "aws_batch_job_definition" "benchmark" {
  count                 = local.scheduled
  name                  = "${var.name}-benchmark"
  type                  = "container"
  platform_capabilities = ["EC2"]
  propagate_tags        = true

  container_properties = jsonencode({
    image      = local.image
    jobRoleArn = aws_iam_role.benchmark[0].arn
    # One gang at a time: each would start machines of its own.
    command = ["sh", "-c", "convoy init && exec python flows/benchmark_flow.py --config-value bench \"$BENCHMARK\" run --max-workers 1"]
    resourceRequirements = [
      { type = "VCPU", value = "4" },
      { type = "MEMORY", value = "16000" },
    ]
    environment = [
      for key, value in merge(local.metaflow, {
        AWS_DEFAULT_REGION = var.region
        BENCHMARK          = jsonencode(yamldecode(file(var.schedule.config)))
        METAFLOW_USER      = "schedule"
      }) : { name = key, value = value }
    ]
  })
}

resource "aws_iam_role" "scheduler" {
  count       = local.scheduled
  name        = "${var.name}-scheduler"
  description = "EventBridge Scheduler, which submits the benchmark"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "scheduler.amazonaws.com" }
      Action    = "sts:AssumeRole"
      Condition = { StringEquals = { "aws:SourceAccount" = data.aws_caller_identity.current.account_id } }
    }]
  })
}

resource "aws_iam_role_policy" "scheduler" {
  count = local.scheduled
  name  = "submit"
  role  = aws_iam_role.scheduler[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect = "Allow"
      Action = ["batch:SubmitJob"]
      Resource = [
        aws_batch_job_queue.cpu.arn,
        "${aws_batch_job_definition.benchmark[0].arn_prefix}:*",
      ]
    }]
  })
}

resource "aws_scheduler_schedule" "benchmark" {
  count               = local.scheduled
  name                = "${var.name}-benchmark"
  schedule_expression = var.schedule.expression

  flexible_time_window {
    mode = "OFF"
  }
  target {
    arn      = "arn:aws:scheduler:::aws-sdk:batch:submitJob"
    role_arn = aws_iam_role.scheduler[0].arn
    input = jsonencode({
      JobName       = "${var.name}-benchmark"
      JobQueue      = aws_batch_job_queue.cpu.arn
      JobDefinition = aws_batch_job_definition.benchmark[0].arn
    })
    retry_policy {
      maximum_retry_attempts = 0 # a benchmark that starts twice costs twice
    }
  }
}
