# The control plane, and who may talk to it.

resource "aws_iam_role" "cluster" {
  name        = "${var.name}-cluster"
  description = "Role of the EKS control plane"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "eks.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"
}

resource "aws_kms_key" "cluster" {
  description             = "Secrets and logs of the EKS cluster ${var.name}"
  enable_key_rotation     = true
  deletion_window_in_days = 7
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "ByPoliciesOfTheAccount"
        Effect    = "Allow"
        Principal = { AWS = "arn:aws:iam::${local.account}:root" }
        Action    = "kms:*"
        Resource  = "*"
      },
      {
        Sid       = "Logs"
        Effect    = "Allow"
        Principal = { Service = "logs.${var.region}.amazonaws.com" }
        Action    = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
        Resource  = "*"
        Condition = {
          ArnEquals = { "kms:EncryptionContext:aws:logs:arn" = "arn:aws:logs:${var.region}:${local.account}:log-group:${local.log_group}" }
        }
      },
    ]
  })
}

resource "aws_kms_alias" "cluster" {
  name          = "alias/${var.name}-eks"
  target_key_id = aws_kms_key.cluster.key_id
}

locals {
  # EKS writes to the group of this name.
  log_group = "/aws/eks/${var.name}/cluster"
}

resource "aws_cloudwatch_log_group" "cluster" {
  name              = local.log_group
  retention_in_days = 365
  kms_key_id        = aws_kms_key.cluster.arn
}

resource "aws_eks_cluster" "this" {
  # checkov:skip=CKV_AWS_339:its list of versions ends before 1.36
  name     = var.name
  version  = var.kubernetes_version
  role_arn = aws_iam_role.cluster.arn
  # All add-ons are EKS's, with pinned versions.
  bootstrap_self_managed_addons = false
  enabled_cluster_log_types     = ["api", "audit", "authenticator", "controllerManager", "scheduler"]

  vpc_config {
    subnet_ids              = module.network.subnet_ids
    endpoint_private_access = true
    endpoint_public_access  = length(var.api_cidrs) > 0
    public_access_cidrs     = length(var.api_cidrs) > 0 ? var.api_cidrs : null
  }

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true
  }

  # Rather than extended support, which costs six times as much: AWS upgrades the cluster when its version runs out.
  upgrade_policy {
    support_type = "STANDARD"
  }

  encryption_config {
    resources = ["secrets"]
    provider {
      key_arn = aws_kms_key.cluster.arn
    }
  }

  depends_on = [aws_cloudwatch_log_group.cluster, aws_iam_role_policy_attachment.cluster]
}

# Who starts runs from the launcher. Others get an access entry with the same group.
resource "aws_eks_access_entry" "launcher" {
  cluster_name      = aws_eks_cluster.this.name
  principal_arn     = "arn:aws:iam::${local.account}:role/${var.name}-launcher"
  kubernetes_groups = [local.submitters]
  depends_on        = [module.launcher]
}

resource "aws_vpc_security_group_ingress_rule" "launcher" {
  security_group_id            = aws_eks_cluster.this.vpc_config[0].cluster_security_group_id
  description                  = "The launcher talks to the API server"
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
  referenced_security_group_id = module.launcher.security_group_id
}

# Tasks get their AWS rights by their service account, never by their machine.
resource "aws_eks_pod_identity_association" "task" {
  cluster_name    = aws_eks_cluster.this.name
  namespace       = local.namespace
  service_account = local.service_account
  role_arn        = module.iam.task_role_arn
}
