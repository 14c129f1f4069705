# What Karpenter may do, as its own template for 1.14 has it (website/content/en/v1.14/getting-started/
# getting-started-with-karpenter/cloudformation.yaml): it creates only what it tags as its own, and changes and deletes
# only that. The right to read zonal shifts is left out, since they are not enabled; the role of spot is added.

locals {
  ec2     = "arn:aws:ec2:${var.region}"
  cluster = { "kubernetes.io/cluster/${var.name}" = "owned" }

  # Tags that a request sets, and those that a thing has.
  requested = merge(
    { for key, value in local.cluster : "aws:RequestTag/${key}" => value },
    { "aws:RequestTag/eks:eks-cluster-name" = var.name },
  )
  owned = { for key, value in local.cluster : "aws:ResourceTag/${key}" => value }

  created = [
    for kind in ["fleet", "instance", "volume", "network-interface", "launch-template", "spot-instances-request"] :
    "${local.ec2}:*:${kind}/*"
  ]
  instance_profiles = ["arn:aws:iam::${local.account}:instance-profile/*"]
}

resource "aws_iam_policy" "karpenter" {
  name        = "${var.name}-karpenter"
  description = "Starts and ends machines of the cluster ${var.name}"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid    = "StartFrom"
        Effect = "Allow"
        Action = ["ec2:RunInstances", "ec2:CreateFleet"]
        Resource = concat(
          [for kind in ["image", "snapshot"] : "${local.ec2}::${kind}/*"],
          [for kind in ["security-group", "subnet", "capacity-reservation", "placement-group"] : "${local.ec2}:*:${kind}/*"],
        )
      },
      {
        Sid      = "StartFromOwnTemplates"
        Effect   = "Allow"
        Action   = ["ec2:RunInstances", "ec2:CreateFleet"]
        Resource = ["${local.ec2}:*:launch-template/*"]
        Condition = {
          StringEquals = local.owned
          StringLike   = { "aws:ResourceTag/karpenter.sh/nodepool" = "*" }
        }
      },
      {
        Sid      = "StartTagged"
        Effect   = "Allow"
        Action   = ["ec2:RunInstances", "ec2:CreateFleet", "ec2:CreateLaunchTemplate"]
        Resource = local.created
        Condition = {
          StringEquals = local.requested
          StringLike   = { "aws:RequestTag/karpenter.sh/nodepool" = "*" }
        }
      },
      {
        Sid      = "TagWhatItStarts"
        Effect   = "Allow"
        Action   = ["ec2:CreateTags"]
        Resource = local.created
        Condition = {
          StringEquals = merge(local.requested, { "ec2:CreateAction" = ["RunInstances", "CreateFleet", "CreateLaunchTemplate"] })
          StringLike   = { "aws:RequestTag/karpenter.sh/nodepool" = "*" }
        }
      },
      {
        Sid      = "TagItsMachines"
        Effect   = "Allow"
        Action   = ["ec2:CreateTags"]
        Resource = ["${local.ec2}:*:instance/*"]
        Condition = {
          StringEquals                = local.owned
          StringLike                  = { "aws:ResourceTag/karpenter.sh/nodepool" = "*" }
          StringEqualsIfExists        = { "aws:RequestTag/eks:eks-cluster-name" = var.name }
          "ForAllValues:StringEquals" = { "aws:TagKeys" = ["eks:eks-cluster-name", "karpenter.sh/nodeclaim", "Name"] }
        }
      },
      {
        Sid      = "EndItsMachines"
        Effect   = "Allow"
        Action   = ["ec2:TerminateInstances", "ec2:DeleteLaunchTemplate"]
        Resource = ["${local.ec2}:*:instance/*", "${local.ec2}:*:launch-template/*"]
        Condition = {
          StringEquals = local.owned
          StringLike   = { "aws:ResourceTag/karpenter.sh/nodepool" = "*" }
        }
      },
      {
        Sid       = "GiveMachinesTheirRole"
        Effect    = "Allow"
        Action    = ["iam:PassRole"]
        Resource  = [aws_iam_role.node.arn]
        Condition = { StringEquals = { "iam:PassedToService" = "ec2.amazonaws.com" } }
      },
      {
        Sid      = "CreateInstanceProfiles"
        Effect   = "Allow"
        Action   = ["iam:CreateInstanceProfile"]
        Resource = local.instance_profiles
        Condition = {
          StringEquals = merge(local.requested, { "aws:RequestTag/topology.kubernetes.io/region" = var.region })
          StringLike   = { "aws:RequestTag/karpenter.k8s.aws/ec2nodeclass" = "*" }
        }
      },
      {
        Sid      = "TagInstanceProfiles"
        Effect   = "Allow"
        Action   = ["iam:TagInstanceProfile"]
        Resource = local.instance_profiles
        Condition = {
          StringEquals = merge(local.owned, local.requested, {
            "aws:ResourceTag/topology.kubernetes.io/region" = var.region
            "aws:RequestTag/topology.kubernetes.io/region"  = var.region
          })
          StringLike = {
            "aws:ResourceTag/karpenter.k8s.aws/ec2nodeclass" = "*"
            "aws:RequestTag/karpenter.k8s.aws/ec2nodeclass"  = "*"
          }
        }
      },
      {
        Sid      = "ChangeInstanceProfiles"
        Effect   = "Allow"
        Action   = ["iam:AddRoleToInstanceProfile", "iam:RemoveRoleFromInstanceProfile", "iam:DeleteInstanceProfile"]
        Resource = local.instance_profiles
        Condition = {
          StringEquals = merge(local.owned, { "aws:ResourceTag/topology.kubernetes.io/region" = var.region })
          StringLike   = { "aws:ResourceTag/karpenter.k8s.aws/ec2nodeclass" = "*" }
        }
      },
      {
        Sid      = "ReadInstanceProfiles"
        Effect   = "Allow"
        Action   = ["iam:GetInstanceProfile"]
        Resource = local.instance_profiles
      },
      {
        # This call knows no resources.
        Sid      = "ListInstanceProfiles"
        Effect   = "Allow"
        Action   = ["iam:ListInstanceProfiles"]
        Resource = ["*"]
      },
      {
        # An account that has never used spot lacks the role; no machine starts on spot without it.
        Sid       = "FirstUseOfSpot"
        Effect    = "Allow"
        Action    = ["iam:CreateServiceLinkedRole"]
        Resource  = ["arn:aws:iam::${local.account}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"]
        Condition = { StringEquals = { "iam:AWSServiceName" = "spot.amazonaws.com" } }
      },
      {
        Sid      = "FindTheCluster"
        Effect   = "Allow"
        Action   = ["eks:DescribeCluster"]
        Resource = ["arn:aws:eks:${var.region}:${local.account}:cluster/${var.name}"]
      },
      {
        Sid      = "ReadInterruptions"
        Effect   = "Allow"
        Action   = ["sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"]
        Resource = [aws_sqs_queue.interruptions.arn]
      },
      {
        # These calls know no resources.
        Sid    = "LookAround"
        Effect = "Allow"
        Action = [
          "ec2:DescribeCapacityReservations",
          "ec2:DescribeImages",
          "ec2:DescribeInstanceStatus",
          "ec2:DescribeInstanceTypeOfferings",
          "ec2:DescribeInstanceTypes",
          "ec2:DescribeInstances",
          "ec2:DescribeLaunchTemplates",
          "ec2:DescribePlacementGroups",
          "ec2:DescribeSecurityGroups",
          "ec2:DescribeSpotPriceHistory",
          "ec2:DescribeSubnets",
        ]
        Resource  = ["*"]
        Condition = { StringEquals = { "aws:RequestedRegion" = var.region } }
      },
      {
        Sid      = "FindImages"
        Effect   = "Allow"
        Action   = ["ssm:GetParameter"]
        Resource = ["arn:aws:ssm:${var.region}::parameter/aws/service/*"]
      },
      {
        # Prices are in us-east-1 for all regions, and the call knows no resources.
        Sid      = "ReadPrices"
        Effect   = "Allow"
        Action   = ["pricing:GetProducts"]
        Resource = ["*"]
      },
    ]
  })
}
