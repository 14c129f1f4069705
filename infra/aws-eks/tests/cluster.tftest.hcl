# What is created in AWS, with a provider that creates nothing. What is common with infra/aws-batch is tested there.

mock_provider "aws" {
  source = "./tests/mocks"
}

override_module {
  target = module.metaflow_service
  outputs = {
    service_url = "http://metaflow.internal:8080"
    ui_url      = "http://metaflow.internal:3000"
  }
}

override_module {
  target = module.launcher
  outputs = {
    security_group_id = "sg-0123456789abcdef1"
    commands          = {}
  }
}

variables {
  region               = "us-east-1"
  availability_zone    = "us-east-1a"
  instance_types       = ["p4d.24xlarge", "p5.48xlarge"]
  max_nodes            = 4
  budget_usd_per_month = 50000
  budget_email         = "ml@example.com"
}

run "cluster" {
  command = apply

  assert {
    condition     = aws_eks_cluster.this.upgrade_policy[0].support_type == "STANDARD"
    error_message = "no extended support, which costs six times as much"
  }
  assert {
    condition     = aws_eks_cluster.this.name == "convoy" && aws_eks_cluster.this.version == "1.36"
    error_message = "a cluster of the stack's name, with the version by default"
  }
  assert {
    condition     = aws_eks_cluster.this.vpc_config[0].endpoint_private_access && !aws_eks_cluster.this.vpc_config[0].endpoint_public_access
    error_message = "nobody reaches the API server over the internet unless it is asked for"
  }
  assert {
    condition     = aws_eks_cluster.this.access_config[0].authentication_mode == "API" && aws_eks_cluster.this.access_config[0].bootstrap_cluster_creator_admin_permissions
    error_message = "access by entries only, and the creator is an administrator"
  }
  assert {
    condition     = aws_eks_cluster.this.encryption_config[0].resources == toset(["secrets"]) && aws_eks_cluster.this.encryption_config[0].provider[0].key_arn == aws_kms_key.cluster.arn
    error_message = "secrets are encrypted with the stack's key"
  }
  assert {
    condition     = aws_eks_cluster.this.enabled_cluster_log_types == toset(["api", "audit", "authenticator", "controllerManager", "scheduler"]) && aws_cloudwatch_log_group.cluster.name == "/aws/eks/convoy/cluster"
    error_message = "all logs of the control plane, in the group that EKS writes to"
  }
  assert {
    condition     = !aws_eks_cluster.this.bootstrap_self_managed_addons
    error_message = "no add-ons but the pinned ones"
  }
  assert {
    condition     = aws_eks_access_entry.node.type == "EC2_LINUX" && aws_eks_access_entry.node.principal_arn == aws_iam_role.node.arn
    error_message = "Karpenter's machines may join the cluster"
  }
  assert {
    condition     = aws_eks_access_entry.launcher.principal_arn == "arn:aws:iam::123456789012:role/convoy-launcher" && aws_eks_access_entry.launcher.kubernetes_groups == toset(["convoy-submitters"])
    error_message = "the launcher may start runs"
  }
  assert {
    condition = alltrue([
      for each in [aws_iam_role_policy_attachment.node, aws_iam_role_policy_attachment.system] :
      toset(values(each)[*].policy_arn) == toset(["arn:aws:iam::aws:policy/AmazonEKSWorkerNodeMinimalPolicy", "arn:aws:iam::aws:policy/AmazonEC2ContainerRegistryPullOnly"])
    ])
    error_message = "machines join the cluster and pull images: no S3, no KMS, no CNI"
  }
  assert {
    condition     = alltrue([for each in values(aws_iam_role_policy.join) : flatten(jsondecode(each.policy).Statement[*].Action) == ["ec2:DescribeInstances"]])
    error_message = "beyond that they read their own name"
  }
  assert {
    condition = (
      aws_eks_pod_identity_association.task.namespace == "convoy" && aws_eks_pod_identity_association.task.service_account == "convoy"
      && aws_eks_pod_identity_association.karpenter.namespace == "kube-system" && aws_eks_pod_identity_association.karpenter.service_account == "karpenter"
      && one(aws_eks_addon.vpc_cni.pod_identity_association).service_account == "aws-node"
    )
    error_message = "rights go to service accounts"
  }
  assert {
    condition     = aws_launch_template.system.metadata_options[0].http_tokens == "required" && aws_launch_template.system.metadata_options[0].http_put_response_hop_limit == 1
    error_message = "system pods do not reach the metadata service"
  }
  assert {
    condition     = aws_launch_template.system.block_device_mappings[0].ebs[0].encrypted == "true"
    error_message = "volumes are encrypted"
  }
  assert {
    condition     = alltrue([for each in aws_launch_template.system.tag_specifications : each.tags["convoy:stack"] == "convoy"])
    error_message = "`convoy infra left` finds the machines"
  }
  assert {
    condition     = one(aws_eks_node_group.system.taint).key == "CriticalAddonsOnly" && one(aws_eks_node_group.system.taint).effect == "NO_SCHEDULE" && aws_eks_node_group.system.labels["convoy/pool"] == "system"
    error_message = "tasks stay off the machines of system pods, which are found by a label"
  }
  assert {
    condition = {
      for each in [aws_eks_addon.vpc_cni, aws_eks_addon.kube_proxy, aws_eks_addon.coredns, aws_eks_addon.pod_identity] : each.addon_name => each.addon_version
      } == {
      for name, version in jsondecode(file("../kubernetes/versions.json")).eks["1.36"].addons : name => version if name != "aws-fsx-csi-driver"
    }
    error_message = "add-ons as pinned"
  }
  assert {
    condition     = jsondecode(aws_eks_addon.coredns.configuration_values).nodeSelector == { "convoy/pool" = "system" }
    error_message = "DNS does not keep a machine of Karpenter alive"
  }
  assert {
    condition     = length(aws_eks_addon.fsx_csi) == 0 && length(aws_iam_role.fsx_csi) == 0 && length(module.fsx) == 0
    error_message = "no file system unless it is asked for"
  }
  assert {
    condition     = alltrue([for each in values(aws_placement_group.gang) : each.strategy == "cluster"]) && toset(values(aws_placement_group.gang)[*].name) == toset(["convoy-p4d-24xlarge", "convoy-p5-48xlarge"])
    error_message = "a cluster placement group a type"
  }
  assert {
    condition     = aws_vpc_security_group_ingress_rule.launcher.referenced_security_group_id == "sg-0123456789abcdef1" && aws_vpc_security_group_ingress_rule.launcher.from_port == 443 && aws_vpc_security_group_ingress_rule.launcher.to_port == 443
    error_message = "the launcher reaches the API server"
  }
}

run "karpenter" {
  command = apply

  assert {
    condition = toset([for each in values(aws_cloudwatch_event_rule.interruptions) : jsondecode(each.event_pattern)]) == toset([
      { source = ["aws.ec2"], detail-type = ["EC2 Spot Instance Interruption Warning"] },
      { source = ["aws.ec2"], detail-type = ["EC2 Instance Rebalance Recommendation"] },
      { source = ["aws.ec2"], detail-type = ["EC2 Instance State-change Notification"] },
      { source = ["aws.ec2"], detail-type = ["EC2 Capacity Reservation Instance Interruption Warning"] },
      { source = ["aws.health"], detail-type = ["AWS Health Event"] },
    ])
    error_message = "five kinds of interruptions"
  }
  assert {
    condition     = length(aws_cloudwatch_event_target.interruptions) == 5 && alltrue([for each in values(aws_cloudwatch_event_target.interruptions) : each.arn == aws_sqs_queue.interruptions.arn])
    error_message = "all reach the queue"
  }
  assert {
    condition     = aws_sqs_queue.interruptions.name == "convoy-interruptions" && aws_sqs_queue.interruptions.sqs_managed_sse_enabled && aws_sqs_queue.interruptions.message_retention_seconds == 300
    error_message = "the queue is encrypted"
  }
  assert {
    condition = [for each in jsondecode(aws_sqs_queue_policy.interruptions.policy).Statement : [each.Effect, each.Action]] == [["Allow", "sqs:SendMessage"], ["Deny", "sqs:*"]] && (
      jsondecode(aws_sqs_queue_policy.interruptions.policy).Statement[1].Condition == { Bool = { "aws:SecureTransport" = "false" } }
    )
    error_message = "TLS only, and only the rules write"
  }
  assert {
    condition = alltrue([
      for each in jsondecode(aws_iam_policy.karpenter.policy).Statement :
      each.Effect == "Allow" && can(each.Condition.StringEquals["aws:ResourceTag/kubernetes.io/cluster/convoy"])
      if length(setintersection(each.Action, ["ec2:TerminateInstances", "ec2:DeleteLaunchTemplate", "iam:DeleteInstanceProfile", "iam:AddRoleToInstanceProfile"])) > 0
    ])
    error_message = "Karpenter ends and changes only what is the cluster's"
  }
  assert {
    condition = alltrue([
      for each in jsondecode(aws_iam_policy.karpenter.policy).Statement :
      can(each.Condition.StringEquals["aws:RequestTag/kubernetes.io/cluster/convoy"]) || can(each.Condition.StringEquals["aws:ResourceTag/kubernetes.io/cluster/convoy"])
      if contains(each.Action, "ec2:RunInstances") && anytrue([for resource in each.Resource : strcontains(resource, ":instance/") || strcontains(resource, ":launch-template/")])
    ])
    error_message = "Karpenter starts only what it tags as the cluster's"
  }
  assert {
    condition = [for each in jsondecode(aws_iam_policy.karpenter.policy).Statement : [each.Resource, each.Condition] if contains(each.Action, "iam:CreateServiceLinkedRole")] == [
      [["arn:aws:iam::123456789012:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"], { StringEquals = { "iam:AWSServiceName" = "spot.amazonaws.com" } }],
    ]
    error_message = "the service-linked role of spot, and no other"
  }
  assert {
    condition = [for each in jsondecode(aws_iam_policy.karpenter.policy).Statement : each.Resource if contains(each.Action, "iam:PassRole")] == [
      [aws_iam_role.node.arn],
    ]
    error_message = "machines get the role of machines"
  }
  assert {
    condition     = !anytrue(flatten([for each in jsondecode(aws_iam_policy.karpenter.policy).Statement : [for action in each.Action : strcontains(action, "*")]]))
    error_message = "each action is named"
  }
}
