locals {
  version = regex("__version__ = \"([^\"]+)\"", file("${path.module}/../../platform/convoy/__init__.py"))[0]
  image   = coalesce(var.image, "${aws_ecr_repository.this.repository_url}:${local.version}")
}

output "convoy" {
  value = {
    stack   = var.name
    backend = "kubernetes"
    account = local.account
    region  = var.region
    zone    = var.availability_zone
    bucket  = module.datastore.bucket
    root    = "s3://${module.datastore.bucket}/convoy"
    image   = local.image
    metaflow = {
      METAFLOW_DEFAULT_DATASTORE    = "s3"
      METAFLOW_DATASTORE_SYSROOT_S3 = "s3://${module.datastore.bucket}/metaflow"
      METAFLOW_DATATOOLS_S3ROOT     = "s3://${module.datastore.bucket}/metaflow/data"
      METAFLOW_DEFAULT_METADATA     = "service"
      # On a laptop the service is at the end of the launcher's tunnel.
      METAFLOW_SERVICE_URL                = "http://localhost:8080"
      METAFLOW_SERVICE_INTERNAL_URL       = module.metaflow_service.service_url
      METAFLOW_KUBERNETES_NAMESPACE       = local.namespace
      METAFLOW_KUBERNETES_SERVICE_ACCOUNT = local.service_account
      METAFLOW_KUBERNETES_CONTAINER_IMAGE = local.image
    }
    pools = [
      for pool in local.pools : {
        instance_type   = pool.instance_type
        market          = pool.market
        max_nodes       = pool.max_nodes
        reservation     = pool.reservation
        placement_group = pool.placement_group
        node_pool       = pool.node_pool
        node_class      = pool.node_class
        node_selector = {
          "karpenter.sh/capacity-type"  = pool.capacity_type
          "topology.kubernetes.io/zone" = var.availability_zone
        }
        # Besides that of nvidia.com/gpu, which every gang has.
        tolerations = pool.market == "spot" ? [{ key = "convoy/spot", operator = "Exists", effect = "NoSchedule" }] : []
      }
    ]
    interfaces               = module.gpu_nodes.interfaces
    cpu_node_pool            = "cpu"
    security_group           = module.network.gang_security_group_id
    subnet                   = module.network.gang_subnet_id
    cluster                  = var.name
    namespace                = local.namespace
    service_account          = local.service_account
    host_volumes             = []
    persistent_volume_claims = var.fsx_gib == 0 ? {} : { fsx = "/fsx" }
    file_system              = one(module.fsx[*].file_system)
    budget                   = module.cost_guard.budget
    launcher                 = module.launcher.commands
    usd_per_hour             = module.cost_guard.usd_per_hour
  }
  description = "What `convoy infra connect` and `convoy infra check` read."
}

output "manifests" {
  value       = join("\n---\n", [for each in local.documents : trimprefix(trimspace(each), "---\n")])
  description = "For `terraform output -raw manifests | kubectl apply --server-side -f -`, after infra/kubernetes/controllers."
}

output "kubeconfig_command" {
  value       = "aws eks update-kubeconfig --name ${var.name} --region ${var.region}"
  description = "Lets kubectl and Metaflow find the cluster."
}

output "usd_per_hour" {
  value       = module.cost_guard.usd_per_hour
  description = "What max_nodes machines of each type cost an hour in each market, by the newest price known."
}

output "launcher" {
  value       = module.launcher.commands
  description = "How to reach the launcher, the metadata service and the UI."
}
