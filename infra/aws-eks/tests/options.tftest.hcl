# What the stack hands out, and what each option changes.

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

run "outputs" {
  command = apply

  assert {
    condition     = output.convoy.backend == "kubernetes" && output.convoy.cluster == "convoy" && output.convoy.root == "s3://convoy-123456789012-us-east-1/convoy"
    error_message = "jobs live in the bucket"
  }
  assert {
    condition = output.convoy.metaflow == {
      METAFLOW_DEFAULT_DATASTORE          = "s3"
      METAFLOW_DATASTORE_SYSROOT_S3       = "s3://convoy-123456789012-us-east-1/metaflow"
      METAFLOW_DATATOOLS_S3ROOT           = "s3://convoy-123456789012-us-east-1/metaflow/data"
      METAFLOW_DEFAULT_METADATA           = "service"
      METAFLOW_SERVICE_URL                = "http://localhost:8080"
      METAFLOW_SERVICE_INTERNAL_URL       = "http://metaflow.internal:8080"
      METAFLOW_KUBERNETES_NAMESPACE       = "convoy"
      METAFLOW_KUBERNETES_SERVICE_ACCOUNT = "convoy"
      METAFLOW_KUBERNETES_CONTAINER_IMAGE = output.convoy.image
    }
    error_message = "Metaflow's profile"
  }
  assert {
    condition     = startswith(output.convoy.image, "123456789012.dkr.ecr.us-east-1.amazonaws.com/convoy:")
    error_message = "the stack's own repository"
  }
  assert {
    condition = [for each in output.convoy.pools : [each.instance_type, each.market, each.node_pool, each.node_class, each.max_nodes]] == [
      ["p4d.24xlarge", "on_demand", "p4d-24xlarge-on-demand", "p4d-24xlarge", 4],
      ["p4d.24xlarge", "spot", "p4d-24xlarge-spot", "p4d-24xlarge", 4],
      ["p5.48xlarge", "on_demand", "p5-48xlarge-on-demand", "p5-48xlarge", 4],
      ["p5.48xlarge", "spot", "p5-48xlarge-spot", "p5-48xlarge", 4],
    ]
    error_message = "two pools a type"
  }
  assert {
    condition = (
      output.convoy.pools[3].node_selector == { "karpenter.sh/capacity-type" = "spot", "topology.kubernetes.io/zone" = "us-east-1a" }
      && jsonencode(output.convoy.pools[3].tolerations) == jsonencode([{ effect = "NoSchedule", key = "convoy/spot", operator = "Exists" }])
      && length(output.convoy.pools[2].tolerations) == 0
    )
    error_message = "what pods need to land in a pool"
  }
  assert {
    condition     = output.convoy.usd_per_hour.on_demand[0].low == 4 * 21.9576 && contains(keys(output.convoy.usd_per_hour), "spot") && output.usd_per_hour == output.convoy.usd_per_hour
    error_message = "what the machines cost, by market"
  }
  assert {
    condition     = output.kubeconfig_command == "aws eks update-kubeconfig --name convoy --region us-east-1"
    error_message = "how kubectl finds the cluster"
  }
  assert {
    condition     = length(output.convoy.persistent_volume_claims) == 0 && length(output.convoy.host_volumes) == 0 && output.convoy.file_system == null
    error_message = "no volumes without a file system"
  }
}

run "file_system" {
  command = apply
  variables {
    fsx_gib = 2400
  }
  assert {
    condition     = aws_eks_addon.fsx_csi[0].addon_version == jsondecode(file("../kubernetes/versions.json")).eks["1.36"].addons["aws-fsx-csi-driver"] && one(aws_eks_addon.fsx_csi[0].pod_identity_association).service_account == "fsx-csi-controller-sa"
    error_message = "the driver as pinned, with a role of its own"
  }
  assert {
    condition     = [for each in jsondecode(aws_iam_role_policy.fsx_csi[0].policy).Statement : each.Action] == [["fsx:DescribeFileSystems"]]
    error_message = "the driver creates no file systems"
  }
  assert {
    condition     = output.convoy.persistent_volume_claims == tomap({ fsx = "/fsx" })
    error_message = "tasks see the file system"
  }
  assert {
    condition     = output.convoy.file_system == { gib = 2400, mb_per_second_per_tib = 250 }
    error_message = "its size and throughput class, which it is paid for by"
  }
}

run "open_to_an_office_with_a_later_kubernetes_without_keeping_data" {
  command = apply
  variables {
    api_cidrs          = ["203.0.113.0/24"]
    kubernetes_version = "1.37"
    keep_data          = false
    image              = "registry.example.com/convoy:1"
    name               = "other"
  }
  assert {
    condition     = aws_eks_cluster.this.vpc_config[0].endpoint_private_access && aws_eks_cluster.this.vpc_config[0].endpoint_public_access && aws_eks_cluster.this.vpc_config[0].public_access_cidrs == toset(["203.0.113.0/24"])
    error_message = "this network, and the VPC as before"
  }
  assert {
    condition     = aws_eks_cluster.this.version == "1.37" && strcontains(output.manifests, "alias: al2023@latest")
    error_message = "the version asked for, with AWS's newest image"
  }
  assert {
    condition     = aws_ecr_repository.this.force_delete && output.convoy.image == "registry.example.com/convoy:1" && aws_eks_cluster.this.name == "other"
    error_message = "images go as well; name and image are as asked for"
  }
}
