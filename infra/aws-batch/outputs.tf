locals {
  version = regex("__version__ = \"([^\"]+)\"", file("${path.module}/../../platform/convoy/__init__.py"))[0]
  image   = coalesce(var.image, "${aws_ecr_repository.this.repository_url}:${local.version}")

  metaflow = {
    METAFLOW_DEFAULT_DATASTORE      = "s3"
    METAFLOW_DATASTORE_SYSROOT_S3   = "s3://${module.datastore.bucket}/metaflow"
    METAFLOW_DATATOOLS_S3ROOT       = "s3://${module.datastore.bucket}/metaflow/data"
    METAFLOW_DEFAULT_METADATA       = "service"
    METAFLOW_SERVICE_URL            = module.metaflow_service.service_url
    METAFLOW_SERVICE_INTERNAL_URL   = module.metaflow_service.service_url
    METAFLOW_BATCH_JOB_QUEUE        = aws_batch_job_queue.cpu.name
    METAFLOW_BATCH_CONTAINER_IMAGE  = local.image
    METAFLOW_ECS_S3_ACCESS_IAM_ROLE = module.iam.task_role_arn
  }
}

output "convoy" {
  value = {
    stack   = var.name
    backend = "batch"
    account = data.aws_caller_identity.current.account_id
    region  = var.region
    zone    = var.availability_zone
    bucket  = module.datastore.bucket
    root    = "s3://${module.datastore.bucket}/convoy"
    image   = local.image
    # On a laptop the service is at the end of the launcher's tunnel.
    metaflow = merge(local.metaflow, { METAFLOW_SERVICE_URL = "http://localhost:8080" })
    pools = [
      for name in var.instance_types : {
        instance_type       = name
        market              = try(var.reservations[name].kind, "") == "capacity_block" ? "capacity_block" : "on_demand"
        max_nodes           = var.max_nodes
        reservation         = try(var.reservations[name].id, null)
        queue               = aws_batch_job_queue.gpu[name].name
        compute_environment = aws_batch_compute_environment.gpu[name].compute_environment_name
        placement_group     = var.market == "reserved" ? null : local.names[name]
      }
    ]
    interfaces     = module.gpu_nodes.interfaces
    cpu_queue      = aws_batch_job_queue.cpu.name
    security_group = module.network.gang_security_group_id
    subnet         = module.network.gang_subnet_id
    iam_role       = module.iam.task_role_arn
    host_volumes   = var.fsx_gib == 0 ? [] : ["/fsx"]
    file_system    = one(module.fsx[*].file_system)
    budget         = module.cost_guard.budget
    launcher       = module.launcher.commands
    usd_per_hour   = module.cost_guard.usd_per_hour
  }
  description = "What `convoy infra connect` and `convoy infra check` read."
}

output "usd_per_hour" {
  value       = module.cost_guard.usd_per_hour
  description = "What max_nodes machines of each type cost an hour, by the newest price known."
}

output "launcher" {
  value       = module.launcher.commands
  description = "How to reach the launcher, the metadata service and the UI."
}
