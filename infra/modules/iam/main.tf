# Who may do what: tasks read and write the bucket; who starts runs may also submit jobs.

terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.100" }
  }
}

locals {
  batch      = var.backend == "batch"
  aws_batch  = "arn:aws:batch:${var.region}:${var.account}"
  prefixes   = ["metaflow", "convoy"]
  readable   = concat(local.prefixes, ["corpus", "fsx"])
  bucket_arn = "arn:aws:s3:::${var.bucket}"

  task_statements = [
    {
      Sid      = "ListTheBucket"
      Effect   = "Allow"
      Action   = ["s3:ListBucket"]
      Resource = [local.bucket_arn]
      Condition = {
        # Without a prefix it asks whether the bucket exists, or S3 asks whether to say that a key does not exist (404)
        # or only that it may not be read (403), which Convoy would take for an outage.
        StringLikeIfExists = { "s3:prefix" = flatten([for each in local.readable : [each, "${each}/*"]]) }
      }
    },
    {
      Sid      = "ListUploads"
      Effect   = "Allow"
      Action   = ["s3:ListBucketMultipartUploads"]
      Resource = [local.bucket_arn]
    },
    {
      Sid      = "DeleteCheckpoints"
      Effect   = "Allow"
      Action   = ["s3:DeleteObject"]
      Resource = ["${local.bucket_arn}/convoy/*"]
    },
    {
      Sid      = "ReadCorpora"
      Effect   = "Allow"
      Action   = ["s3:GetObject"]
      Resource = [for each in local.readable : "${local.bucket_arn}/${each}/*"]
    },
    {
      Sid      = "WriteArtifactsAndJobs"
      Effect   = "Allow"
      Action   = ["s3:PutObject", "s3:AbortMultipartUpload"]
      Resource = [for each in local.prefixes : "${local.bucket_arn}/${each}/*"]
    },
  ]
  batch_statements = [
    {
      Sid    = "SubmitJobs"
      Effect = "Allow"
      Action = ["batch:SubmitJob"]
      Resource = [
        "${local.aws_batch}:job-queue/${var.name}-*",
        "${local.aws_batch}:job-definition/metaflow_*",
      ]
    },
    {
      Sid      = "DefineJobs"
      Effect   = "Allow"
      Action   = ["batch:RegisterJobDefinition", "batch:TagResource"]
      Resource = ["${local.aws_batch}:job-definition/metaflow_*"]
    },
    {
      Sid      = "EndJobs"
      Effect   = "Allow"
      Action   = ["batch:TerminateJob", "batch:TagResource"]
      Resource = ["${local.aws_batch}:job/*"]
    },
    {
      # These calls know no resources.
      Sid    = "LookAtJobs"
      Effect = "Allow"
      Action = [
        "batch:DescribeJobs",
        "batch:DescribeJobDefinitions",
        "batch:DescribeJobQueues",
        "batch:DescribeComputeEnvironments",
        "batch:ListJobs",
      ]
      Resource = ["*"]
    },
    {
      Sid      = "ReadLogs"
      Effect   = "Allow"
      Action   = ["logs:GetLogEvents"]
      Resource = ["arn:aws:logs:${var.region}:${var.account}:log-group:/aws/batch/job:log-stream:*"]
    },
    {
      Sid       = "GiveJobsTheirRole"
      Effect    = "Allow"
      Action    = ["iam:PassRole"]
      Resource  = ["arn:aws:iam::${var.account}:role/${local.task_role}"]
      Condition = { StringEqualsIfExists = { "iam:PassedToService" = "ecs-tasks.amazonaws.com" } }
    },
  ]
  kubernetes_statements = [{
    Sid      = "FindTheCluster"
    Effect   = "Allow"
    Action   = ["eks:DescribeCluster"]
    Resource = ["arn:aws:eks:${var.region}:${var.account}:cluster/${var.name}"]
  }]

  task_role   = "${var.name}-task"
  task_policy = jsonencode({ Version = "2012-10-17", Statement = local.task_statements })
  submit_policy = (
    local.batch
    ? jsonencode({ Version = "2012-10-17", Statement = local.batch_statements })
    : jsonencode({ Version = "2012-10-17", Statement = local.kubernetes_statements })
  )

  by_ecs = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ecs-tasks.amazonaws.com" }
      Action    = "sts:AssumeRole"
      Condition = { StringEquals = { "aws:SourceAccount" = var.account } }
    }]
  })
  by_pods = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "pods.eks.amazonaws.com" }
      Action    = ["sts:AssumeRole", "sts:TagSession"]
    }]
  })
}

resource "aws_iam_policy" "task" {
  name        = "${var.name}-task"
  description = "Reads and writes the bucket of the stack"
  policy      = local.task_policy
}

resource "aws_iam_policy" "submit" {
  name        = "${var.name}-submit"
  description = "Starts and ends the tasks of runs"
  policy      = local.submit_policy
}

resource "aws_iam_role" "task" {
  name               = local.task_role
  description        = "Role of tasks"
  assume_role_policy = local.batch ? local.by_ecs : local.by_pods
}

resource "aws_iam_role_policy_attachment" "task" {
  role       = aws_iam_role.task.name
  policy_arn = aws_iam_policy.task.arn
}
