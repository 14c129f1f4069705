# EKS's add-ons, and a few small machines for Karpenter, DNS and the JobSet controller.

locals {
  # A version of Kubernetes without pins gets the add-ons that AWS takes by default.
  addons = try(local.versions.eks[var.kubernetes_version].addons, {})

  by_pods = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "pods.eks.amazonaws.com" }
      Action    = ["sts:AssumeRole", "sts:TagSession"]
    }]
  })
  by_ec2 = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
  # To hand out the roles of service accounts, and to pull images.
  node_policies = toset(["AmazonEKSWorkerNodeMinimalPolicy", "AmazonEC2ContainerRegistryPullOnly"])
}

# A machine of AL2023 reads its own DNS name, by which it joins the cluster (awslabs/amazon-eks-ami, nodeadm/internal/api/
# status.go). The call knows no resources.
resource "aws_iam_role_policy" "join" {
  for_each = { system = aws_iam_role.system.name, node = aws_iam_role.node.name }
  name     = "join-the-cluster"
  role     = each.value
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "ReadOwnName"
      Effect    = "Allow"
      Action    = ["ec2:DescribeInstances"]
      Resource  = ["*"]
      Condition = { StringEquals = { "aws:RequestedRegion" = var.region } }
    }]
  })
}

# First: the others get their roles through it.
resource "aws_eks_addon" "pod_identity" {
  cluster_name  = aws_eks_cluster.this.name
  addon_name    = "eks-pod-identity-agent"
  addon_version = lookup(local.addons, "eks-pod-identity-agent", null)
}

resource "aws_iam_role" "vpc_cni" {
  name               = "${var.name}-vpc-cni"
  description        = "Gives addresses to pods"
  assume_role_policy = local.by_pods
}

resource "aws_iam_role_policy_attachment" "vpc_cni" {
  role       = aws_iam_role.vpc_cni.name
  policy_arn = "arn:aws:iam::aws:policy/AmazonEKS_CNI_Policy"
}

# Before any machine, which would not become ready without them.
resource "aws_eks_addon" "vpc_cni" {
  cluster_name  = aws_eks_cluster.this.name
  addon_name    = "vpc-cni"
  addon_version = lookup(local.addons, "vpc-cni", null)

  pod_identity_association {
    service_account = "aws-node"
    role_arn        = aws_iam_role.vpc_cni.arn
  }

  depends_on = [aws_eks_addon.pod_identity, aws_iam_role_policy_attachment.vpc_cni]
}

resource "aws_eks_addon" "kube_proxy" {
  cluster_name  = aws_eks_cluster.this.name
  addon_name    = "kube-proxy"
  addon_version = lookup(local.addons, "kube-proxy", null)
}

resource "aws_iam_role" "system" {
  name               = "${var.name}-system"
  description        = "Role of the machines that run system pods"
  assume_role_policy = local.by_ec2
}

resource "aws_iam_role_policy_attachment" "system" {
  for_each   = local.node_policies
  role       = aws_iam_role.system.name
  policy_arn = "arn:aws:iam::aws:policy/${each.key}"
}

resource "aws_launch_template" "system" {
  name = "${var.name}-system"

  # System pods have no use for the metadata service.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_size           = 50
      volume_type           = "gp3"
      encrypted             = "true"
      delete_on_termination = "true"
    }
  }

  dynamic "tag_specifications" {
    for_each = ["instance", "volume", "network-interface"]
    content {
      resource_type = tag_specifications.value
      tags          = { Name = "${var.name}-system", "convoy:stack" = var.name }
    }
  }
}

resource "aws_eks_node_group" "system" {
  cluster_name    = aws_eks_cluster.this.name
  node_group_name = "${var.name}-system"
  node_role_arn   = aws_iam_role.system.arn
  subnet_ids      = module.network.subnet_ids
  ami_type        = "AL2023_x86_64_STANDARD"
  capacity_type   = "ON_DEMAND"
  # Not every zone has all of them.
  instance_types = ["m7i.large", "m6i.large", "m5.large"]
  labels         = { "convoy/pool" = "system" }

  scaling_config {
    desired_size = 2
    min_size     = 2
    max_size     = 3
  }
  update_config {
    max_unavailable = 1
  }

  launch_template {
    id      = aws_launch_template.system.id
    version = aws_launch_template.system.latest_version
  }

  # Keeps tasks away. System pods tolerate it.
  taint {
    key    = "CriticalAddonsOnly"
    value  = "true"
    effect = "NO_SCHEDULE"
  }

  depends_on = [
    aws_eks_addon.vpc_cni,
    aws_eks_addon.kube_proxy,
    aws_iam_role_policy.join,
    aws_iam_role_policy_attachment.system,
  ]
}

# The others have pods that wait for a machine.
resource "aws_eks_addon" "coredns" {
  cluster_name  = aws_eks_cluster.this.name
  addon_name    = "coredns"
  addon_version = lookup(local.addons, "coredns", null)
  # On a machine of Karpenter it would keep that machine alive for ever.
  configuration_values = jsonencode({ nodeSelector = { "convoy/pool" = "system" } })
  depends_on           = [aws_eks_node_group.system]
}

resource "aws_iam_role" "fsx_csi" {
  count              = var.fsx_gib == 0 ? 0 : 1
  name               = "${var.name}-fsx-csi"
  description        = "Mounts the file system of the stack"
  assume_role_policy = local.by_pods
}

# The file system exists already, so the driver never creates or deletes one.
resource "aws_iam_role_policy" "fsx_csi" {
  count = var.fsx_gib == 0 ? 0 : 1
  name  = "describe-file-systems"
  role  = aws_iam_role.fsx_csi[0].name
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid      = "LookAtFileSystems"
      Effect   = "Allow"
      Action   = ["fsx:DescribeFileSystems"]
      Resource = ["arn:aws:fsx:${var.region}:${local.account}:file-system/*"]
    }]
  })
}

resource "aws_eks_addon" "fsx_csi" {
  count         = var.fsx_gib == 0 ? 0 : 1
  cluster_name  = aws_eks_cluster.this.name
  addon_name    = "aws-fsx-csi-driver"
  addon_version = lookup(local.addons, "aws-fsx-csi-driver", null)

  pod_identity_association {
    service_account = "fsx-csi-controller-sa"
    role_arn        = aws_iam_role.fsx_csi[0].arn
  }

  depends_on = [aws_eks_addon.pod_identity, aws_eks_node_group.system, aws_iam_role_policy.fsx_csi]
}
