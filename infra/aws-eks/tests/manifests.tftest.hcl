# What else is applied to the cluster.

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
  instance_types       = ["p5.48xlarge", "g5.xlarge"]
  max_nodes            = 4
  budget_usd_per_month = 50000
  budget_email         = "ml@example.com"
}

run "plan" {
  command = plan
}

run "pods" {
  command = plan
  module {
    source = "./tests/documents"
  }
  variables {
    manifests = run.plan.manifests
  }

  assert {
    condition     = output.documents["Namespace/convoy"].metadata.labels["pod-security.kubernetes.io/enforce"] == "baseline"
    error_message = "no task takes over its machine"
  }
  assert {
    condition = (
      { for each in output.documents["Deployment/karpenter"].spec.template.spec.containers[0].env : each.name => try(each.value, "") if can(each.value) } ==
      { CLUSTER_NAME = "convoy", INTERRUPTION_QUEUE = "convoy-interruptions", AWS_REGION = "us-east-1", FEATURE_GATES = "NodeOverlay=true" }
    )
    error_message = "Karpenter's settings"
  }
  assert {
    condition = (
      output.documents["Deployment/karpenter"].spec.template.spec.containers[0].image == jsondecode(file("../kubernetes/versions.json")).images.karpenter
      && output.documents["DaemonSet/nvidia-device-plugin"].spec.template.spec.containers[0].image == jsondecode(file("../kubernetes/versions.json")).images["nvidia-device-plugin"]
      && output.documents["DaemonSet/efa-device-plugin"].spec.template.spec.containers[0].image == jsondecode(file("../kubernetes/versions.json")).images["efa-device-plugin"]
    )
    error_message = "images as pinned"
  }
  assert {
    condition     = endswith(output.documents["Deployment/karpenter"].spec.template.spec.containers[0].image, ":${trimprefix(jsondecode(file("../kubernetes/versions.json")).releases.karpenter.version, "v")}")
    error_message = "Karpenter's image and definitions are of one release"
  }
  assert {
    condition = alltrue([
      for name in ["nvidia-device-plugin", "efa-device-plugin"] :
      toset([for each in output.documents["DaemonSet/${name}"].spec.template.spec.tolerations : [each.key, each.operator]]) == toset([["nvidia.com/gpu", "Exists"], ["convoy/spot", "Exists"]])
    ])
    error_message = "the plugins run on all GPU machines"
  }
  assert {
    condition = (
      output.documents["MutatingAdmissionPolicy/convoy-grace"].spec.matchConstraints.objectSelector.matchLabels == { "app.kubernetes.io/part-of" = "metaflow" }
      && output.documents["MutatingAdmissionPolicy/convoy-grace"].spec.matchConstraints.namespaceSelector.matchLabels == { "kubernetes.io/metadata.name" = "convoy" }
      && output.documents["MutatingAdmissionPolicyBinding/convoy-grace"].spec.policyName == "convoy-grace"
      && strcontains(output.documents["MutatingAdmissionPolicy/convoy-grace"].spec.mutations[0].jsonPatch.expression, "value: 110")
    )
    error_message = "Metaflow's pods get a grace period"
  }
  assert {
    condition = {
      for each in output.documents["Role/convoy-submit"].rules : each.resources[0] => each.verbs
      } == {
      jobsets                = ["create", "get", "delete"]
      jobs                   = ["create", "get", "patch"]
      pods                   = ["get", "list"]
      "pods/exec"            = ["create", "get"]
      "pods/log"             = ["get"]
      persistentvolumeclaims = ["get"]
    }
    error_message = "who starts runs may do what Metaflow does"
  }
  assert {
    condition     = alltrue([for each in output.documents["ClusterRole/convoy-check"].rules : contains([["get"], ["list"]], each.verbs)]) && output.documents["ClusterRoleBinding/convoy-check"].subjects[0].name == "convoy-submitters" && output.documents["RoleBinding/convoy-submit"].subjects[0].name == "convoy-submitters"
    error_message = "and read what `convoy infra check` reads"
  }
  assert {
    condition     = output.documents["ServiceAccount/convoy"].metadata.namespace == "convoy" && !output.documents["ServiceAccount/convoy"].automountServiceAccountToken
    error_message = "tasks have no rights in Kubernetes"
  }
  assert {
    condition     = !can(output.documents["PersistentVolume/fsx"])
    error_message = "no volume without a file system"
  }
}

run "controllers" {
  command = plan
  module {
    source = "./tests/documents"
  }
  variables {
    manifests = replace(file("../kubernetes/controllers/kustomization.yaml"), "kind: Kustomization", "kind: Kustomization\nmetadata: {name: controllers}")
  }

  assert {
    condition = toset([for each in output.documents["Kustomization/controllers"].resources : each]) == toset(concat(
      ["https://github.com/kubernetes-sigs/jobset//config/default?ref=${jsondecode(file("../kubernetes/versions.json")).releases.jobset.commit}&timeout=120s"],
      [
        for each in ["karpenter.k8s.aws_ec2nodeclasses", "karpenter.sh_nodeclaims", "karpenter.sh_nodeoverlays", "karpenter.sh_nodepools"] :
        "https://raw.githubusercontent.com/aws/karpenter-provider-aws/${jsondecode(file("../kubernetes/versions.json")).releases.karpenter.commit}/pkg/apis/crds/${each}.yaml"
      ],
    ))
    error_message = "the commits of versions.json"
  }
  assert {
    condition     = "${output.documents["Kustomization/controllers"].images[0].newName}:${output.documents["Kustomization/controllers"].images[0].newTag}" == jsondecode(file("../kubernetes/versions.json")).images.jobset
    error_message = "the image of versions.json"
  }
}

run "apply_with_file_system" {
  command = apply
  variables {
    fsx_gib = 2400
  }
}

run "with_file_system" {
  command = plan
  module {
    source = "./tests/documents"
  }
  variables {
    manifests = run.apply_with_file_system.manifests
  }

  assert {
    condition = (
      output.documents["PersistentVolume/fsx"].spec.csi == {
        driver           = "fsx.csi.aws.com"
        volumeHandle     = "fs-0123456789abcdef0"
        volumeAttributes = { dnsname = "fs.internal", mountname = "abcdefgh" }
      }
      && output.documents["PersistentVolume/fsx"].spec.capacity.storage == "2400Gi" && output.documents["PersistentVolume/fsx"].spec.persistentVolumeReclaimPolicy == "Retain"
    )
    error_message = "the file system of the stack"
  }
  assert {
    condition     = output.documents["Job/fsx-permissions"].spec.template.spec.containers[0].command == ["chmod", "1777", "/fsx"] && output.documents["Job/fsx-permissions"].spec.template.spec.volumes[0].persistentVolumeClaim.claimName == "fsx"
    error_message = "tasks, which are not root, may write there"
  }
  assert {
    condition     = output.documents["PersistentVolumeClaim/fsx"].metadata.namespace == "convoy" && output.documents["PersistentVolumeClaim/fsx"].spec.volumeName == "fsx" && output.documents["PersistentVolumeClaim/fsx"].spec.storageClassName == ""
    error_message = "a claim on it, without a storage class"
  }
  assert {
    condition     = alltrue([for key, each in output.documents : strcontains(each.spec.userData, "lustre-client") if startswith(key, "EC2NodeClass/")])
    error_message = "machines can mount it"
  }
}
