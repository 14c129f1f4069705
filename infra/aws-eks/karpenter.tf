# What Karpenter needs in AWS: a role for its machines, one for itself, and a queue of interruptions.

resource "aws_iam_role" "node" {
  name               = local.node_role
  description        = "Role of the machines that run tasks"
  assume_role_policy = local.by_ec2
}

# No S3, no KMS, no CNI: pods reach the metadata service, and with it the role of their machine.
resource "aws_iam_role_policy_attachment" "node" {
  for_each   = local.node_policies
  role       = aws_iam_role.node.name
  policy_arn = "arn:aws:iam::aws:policy/${each.key}"
}

resource "aws_eks_access_entry" "node" {
  cluster_name  = aws_eks_cluster.this.name
  principal_arn = aws_iam_role.node.arn
  type          = "EC2_LINUX"
}

resource "aws_iam_role" "karpenter" {
  name               = "${var.name}-karpenter"
  description        = "Starts and ends the machines that run tasks"
  assume_role_policy = local.by_pods
}

resource "aws_iam_role_policy_attachment" "karpenter" {
  role       = aws_iam_role.karpenter.name
  policy_arn = aws_iam_policy.karpenter.arn
}

resource "aws_eks_pod_identity_association" "karpenter" {
  cluster_name    = aws_eks_cluster.this.name
  namespace       = "kube-system"
  service_account = "karpenter"
  role_arn        = aws_iam_role.karpenter.arn
}

resource "aws_sqs_queue" "interruptions" {
  name                      = local.queue
  message_retention_seconds = 300 # a notice is worth nothing after the two minutes
  sqs_managed_sse_enabled   = true
}

resource "aws_sqs_queue_policy" "interruptions" {
  queue_url = aws_sqs_queue.interruptions.url
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "Rules"
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.interruptions.arn
        Condition = { ArnEquals = { "aws:SourceArn" = [for each in aws_cloudwatch_event_rule.interruptions : each.arn] } }
      },
      {
        Sid       = "TLSOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:*"
        Resource  = aws_sqs_queue.interruptions.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
    ]
  })
}

locals {
  interruptions = {
    spot        = { source = "aws.ec2", type = "EC2 Spot Instance Interruption Warning" }
    rebalance   = { source = "aws.ec2", type = "EC2 Instance Rebalance Recommendation" }
    state       = { source = "aws.ec2", type = "EC2 Instance State-change Notification" }
    reservation = { source = "aws.ec2", type = "EC2 Capacity Reservation Instance Interruption Warning" }
    health      = { source = "aws.health", type = "AWS Health Event" }
  }
}

resource "aws_cloudwatch_event_rule" "interruptions" {
  for_each      = local.interruptions
  name          = "${var.name}-karpenter-${each.key}"
  description   = each.value.type
  event_pattern = jsonencode({ source = [each.value.source], detail-type = [each.value.type] })
}

resource "aws_cloudwatch_event_target" "interruptions" {
  for_each = local.interruptions
  rule     = aws_cloudwatch_event_rule.interruptions[each.key].name
  arn      = aws_sqs_queue.interruptions.arn
}
