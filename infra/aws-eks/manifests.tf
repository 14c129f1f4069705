# What kubectl applies to the cluster. It rests on names and tags, not on ids, so that a plan already knows the text. The
# file system is an exception.

locals {
  templates = "${path.module}/../kubernetes"
  node_role = "${var.name}-node"
  queue     = "${var.name}-interruptions"

  # Names in Kubernetes have no dots.
  names            = { for name in var.instance_types : name => replace(name, ".", "-") }
  placement_groups = { for name in var.instance_types : name => "${var.name}-${local.names[name]}" }
  efa_types        = [for name, facts in module.gpu_nodes.types : name if facts.efa_interfaces > 0]

  # One class a type, because each has its own layout of interfaces; a reservation is a class of its own.
  classes = concat(
    [{ name = "cpu", nvme = false, interfaces = [], placement_group = null, reservation = null }],
    [
      for name in var.instance_types : {
        name            = local.names[name]
        nvme            = module.gpu_nodes.types[name].nvme_count > 0
        interfaces      = module.gpu_nodes.interfaces[name]
        placement_group = local.placement_groups[name]
        reservation     = null
      }
    ],
    [
      for name, reservation in var.reservations : {
        name            = "${local.names[name]}-reserved"
        nvme            = module.gpu_nodes.types[name].nvme_count > 0
        interfaces      = module.gpu_nodes.interfaces[name]
        placement_group = null
        reservation     = reservation.id
      }
    ],
  )

  pools = concat(
    flatten([
      for name in var.instance_types : [
        for market, capacity_type in { on_demand = "on-demand", spot = "spot" } : {
          instance_type                          = name
          market                                 = market
          capacity_type                          = capacity_type
          gpus                                   = module.gpu_nodes.types[name].gpu.count
          max_nodes                              = var.max_nodes
          reservation                            = null
          placement_group                        = local.placement_groups[name]
          node_pool                              = "${local.names[name]}-${capacity_type}"
          node_class                             = local.names[name]
        }
      ]
    ]),
    [
      for name, reservation in var.reservations : {
        instance_type   = name
        market          = reservation.kind
        capacity_type   = "reserved"
        gpus            = module.gpu_nodes.types[name].gpu.count
        max_nodes       = min(var.max_nodes, reservation.count)
        reservation     = reservation.id
        placement_group = null
        node_pool       = "${local.names[name]}-reserved"
        node_class      = "${local.names[name]}-reserved"
      }
    ],
  )

  documents = concat(
    [
      templatefile("${local.templates}/access.yaml.tftpl", {
        namespace       = local.namespace
        service_account = local.service_account
        group           = local.submitters
      }),
      templatefile("${local.templates}/policies.yaml.tftpl", { namespace = local.namespace }),
      templatefile("${local.templates}/karpenter.yaml.tftpl", {
        cluster = var.name
        queue   = local.queue
        region  = var.region
        image   = local.versions.images.karpenter
      }),
      templatefile("${local.templates}/nodes.yaml.tftpl", {
        name      = var.name
        gang      = "${var.name}-gang"
        zone      = var.availability_zone
        role      = local.node_role
        ami       = try(local.versions.eks[var.kubernetes_version].ami, "al2023@latest")
        lustre    = var.fsx_gib > 0
        classes   = local.classes
        pools     = local.pools
        efa_types = local.efa_types
      }),
      templatefile("${local.templates}/device-plugins.yaml.tftpl", {
        gpu_types    = var.instance_types
        efa_types    = local.efa_types
        nvidia_image = local.versions.images["nvidia-device-plugin"]
        efa_image    = local.versions.images["efa-device-plugin"]
      }),
    ],
    [
      for fsx in module.fsx : templatefile("${local.templates}/fsx.yaml.tftpl", {
        namespace      = local.namespace
        gib            = var.fsx_gib
        image          = local.versions.images.busybox
        file_system_id = fsx.file_system_id
        dns_name       = fsx.dns_name
        mount_name     = fsx.mount_name
      })
    ],
  )
}
