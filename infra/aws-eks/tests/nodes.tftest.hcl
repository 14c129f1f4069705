# Which machines Karpenter may start. Plans suffice: the text is known before anything exists.

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
  instance_types       = ["p4d.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "g5.xlarge"]
  max_nodes            = 4
  budget_usd_per_month = 50000
  budget_email         = "ml@example.com"
  reservations = {
    "p4d.24xlarge" = { id = "cr-0123456789abcdef0", count = 2, kind = "reservation" }
    "p5.48xlarge"  = { id = "cr-0fedcba9876543210", count = 8, kind = "capacity_block" }
  }
}

run "plan" {
  command = plan

  assert {
    condition = [for each in output.convoy.pools : [each.node_pool, each.market, each.max_nodes, each.reservation, each.placement_group] if each.reservation != null] == [
      ["p4d-24xlarge-reserved", "reservation", 2, "cr-0123456789abcdef0", null],
      ["p5-48xlarge-reserved", "capacity_block", 4, "cr-0fedcba9876543210", null],
    ]
    error_message = "a third pool where machines are reserved, no larger than the reservation"
  }
  assert {
    condition     = contains(keys(output.convoy.usd_per_hour), "capacity_block")
    error_message = "what a capacity block costs"
  }
}

run "nodes" {
  command = plan
  module {
    source = "./tests/documents"
  }
  variables {
    manifests = run.plan.manifests
  }

  assert {
    condition = [for each in output.documents["EC2NodeClass/p4d-24xlarge"].spec.networkInterfaces : [each.networkCardIndex, each.deviceIndex, each.interfaceType]] == [
      [0, 0, "interface"], [0, 1, "efa-only"], [1, 0, "efa-only"], [2, 0, "efa-only"], [3, 0, "efa-only"],
    ]
    error_message = "p4d: one interface for IP, and an EFA adapter on each of four cards"
  }
  assert {
    condition = alltrue([
      for name, cards in { "p4d-24xlarge" = 4, "p5-48xlarge" = 32, "p5e-48xlarge" = 32, "p5en-48xlarge" = 16, "p6-b200-48xlarge" = 8, "p4d-24xlarge-reserved" = 4, "p5-48xlarge-reserved" = 32 } :
      [for each in output.documents["EC2NodeClass/${name}"].spec.networkInterfaces : [each.networkCardIndex, each.deviceIndex, each.interfaceType]] ==
      concat([[0, 0, "interface"], [0, 1, "efa-only"]], [for card in range(1, cards) : [card, 0, "efa-only"]])
    ])
    error_message = "every adapter of each type, after an interface for IP"
  }
  assert {
    condition     = [for each in output.documents["EC2NodeClass/g5-xlarge"].spec.networkInterfaces : each.interfaceType] == ["interface"] && !can(output.documents["EC2NodeClass/cpu"].spec.networkInterfaces)
    error_message = "no adapters where there are none"
  }
  assert {
    condition = alltrue([
      for key, each in output.documents : each.spec.metadataOptions == { httpEndpoint = "enabled", httpTokens = "required", httpPutResponseHopLimit = 2 }
      if startswith(key, "EC2NodeClass/")
    ])
    error_message = "pods read notices, by IMDSv2 only"
  }
  assert {
    condition = alltrue([
      for key, each in output.documents :
      each.spec.role == "convoy-node" && each.spec.amiSelectorTerms == [{ alias = "al2023@v20260714" }] && each.spec.blockDeviceMappings[0].ebs.encrypted
      && each.spec.subnetSelectorTerms == [{ tags = { Name = "convoy-gang", "convoy:stack" = "convoy" } }]
      && each.spec.securityGroupSelectorTerms == [{ tags = { Name = "convoy-gang", "convoy:stack" = "convoy" } }, { tags = { "aws:eks:cluster-name" = "convoy" } }]
      && each.spec.tags["convoy:stack"] == "convoy" && !can(each.spec.userData)
      if startswith(key, "EC2NodeClass/")
    ])
    error_message = "role, pinned image, encrypted volumes, the gang's subnet and groups by tags, tagged machines"
  }
  assert {
    condition = (
      output.documents["EC2NodeClass/p5-48xlarge"].spec.placementGroupSelector == { name = "convoy-p5-48xlarge" }
      && !can(output.documents["EC2NodeClass/p5-48xlarge"].spec.capacityReservationSelectorTerms)
      && output.documents["EC2NodeClass/p5-48xlarge-reserved"].spec.capacityReservationSelectorTerms == [{ id = "cr-0fedcba9876543210" }]
      && !can(output.documents["EC2NodeClass/p5-48xlarge-reserved"].spec.placementGroupSelector)
      && !can(output.documents["EC2NodeClass/cpu"].spec.placementGroupSelector)
    )
    error_message = "the placement group, or the reservation"
  }
  assert {
    condition     = output.documents["EC2NodeClass/p4d-24xlarge"].spec.instanceStorePolicy == "RAID0" && !can(output.documents["EC2NodeClass/cpu"].spec.instanceStorePolicy)
    error_message = "the disks of the machine, where it has some"
  }
  assert {
    condition = alltrue([
      for key, each in output.documents :
      each.spec.template.spec.expireAfter == "Never" && each.spec.disruption.consolidationPolicy == "WhenEmpty"
      && jsonencode(each.spec.disruption.budgets) == jsonencode([{ nodes = "0", reasons = ["Drifted", "Underutilized"] }, { nodes = "100%", reasons = ["Empty"] }])
      if startswith(key, "NodePool/")
    ])
    error_message = "machines in use are never taken away"
  }
  assert {
    condition     = [for key, each in output.documents : key if startswith(key, "NodePool/") && can(each.spec.template.spec.terminationGracePeriod)] == ["NodePool/p4d-24xlarge-reserved", "NodePool/p5-48xlarge-reserved"]
    error_message = "a period of termination on reserved machines alone"
  }
  assert {
    condition = {
      for key, each in output.documents : key => each.spec.limits if startswith(key, "NodePool/") && !startswith(key, "NodePool/p5e") && !startswith(key, "NodePool/p6")
      } == {
      "NodePool/cpu"                    = { cpu = "128" }
      "NodePool/p4d-24xlarge-on-demand" = { "nvidia.com/gpu" = "32" }
      "NodePool/p4d-24xlarge-spot"      = { "nvidia.com/gpu" = "32" }
      "NodePool/p4d-24xlarge-reserved"  = { "nvidia.com/gpu" = "16" }
      "NodePool/p5-48xlarge-on-demand"  = { "nvidia.com/gpu" = "32" }
      "NodePool/p5-48xlarge-spot"       = { "nvidia.com/gpu" = "32" }
      "NodePool/p5-48xlarge-reserved"   = { "nvidia.com/gpu" = "32" }
      "NodePool/g5-xlarge-on-demand"    = { "nvidia.com/gpu" = "4" }
      "NodePool/g5-xlarge-spot"         = { "nvidia.com/gpu" = "4" }
    }
    error_message = "as many GPUs as max_nodes machines have, and no more than are reserved"
  }
  assert {
    condition = alltrue([
      for key, each in output.documents : join(" ", [for taint in try(each.spec.template.spec.taints, []) : "${taint.key}:${taint.effect}"]) ==
      (key == "NodePool/cpu" ? "" : endswith(key, "-spot") ? "nvidia.com/gpu:NoSchedule convoy/spot:NoSchedule" : "nvidia.com/gpu:NoSchedule")
      if startswith(key, "NodePool/")
    ])
    error_message = "GPU machines are tainted, those on spot twice, CPU machines not at all"
  }
  assert {
    condition = alltrue([
      for key, each in output.documents :
      { for requirement in each.spec.template.spec.requirements : requirement.key => requirement.values... }["topology.kubernetes.io/zone"] == [["us-east-1a"]]
      && { for requirement in each.spec.template.spec.requirements : requirement.key => requirement.values... }["karpenter.sh/capacity-type"] ==
      [[endswith(key, "-spot") ? "spot" : endswith(key, "-reserved") ? "reserved" : "on-demand"]]
      if startswith(key, "NodePool/")
    ])
    error_message = "one zone, and one market a pool"
  }
  assert {
    condition     = [for each in output.documents["NodePool/cpu"].spec.template.spec.requirements : [each.operator, each.values] if each.key == "karpenter.k8s.aws/instance-cpu"] == [["Gt", ["7"]], ["Lt", ["33"]]]
    error_message = "ordinary steps fit on a CPU machine"
  }
  assert {
    condition = (
      output.documents["NodePool/p5-48xlarge-spot"].spec.template.spec.nodeClassRef.name == "p5-48xlarge"
      && output.documents["NodePool/p5-48xlarge-reserved"].spec.template.spec.nodeClassRef.name == "p5-48xlarge-reserved"
      && [for each in output.documents["NodePool/p5-48xlarge-spot"].spec.template.spec.requirements : each.values if each.key == "node.kubernetes.io/instance-type"] == [["p5.48xlarge"]]
    )
    error_message = "one type a pool, with its class"
  }
  assert {
    condition = (
      output.documents["NodeOverlay/efa-huge-pages"].spec.capacity == { "hugepages-2Mi" = "10256Mi" }
      && output.documents["NodeOverlay/efa-huge-pages"].spec.requirements[0].values == ["p4d.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge"]
    )
    error_message = "huge pages of the types with EFA"
  }
}

run "plan_without_efa_and_reservations" {
  command = plan
  variables {
    instance_types = ["g5.xlarge"]
    reservations   = {}
  }
}

run "without_efa_and_reservations" {
  command = plan
  module {
    source = "./tests/documents"
  }
  variables {
    manifests = run.plan_without_efa_and_reservations.manifests
  }

  assert {
    condition     = [for key, each in output.documents : key if startswith(key, "NodePool/") || startswith(key, "EC2NodeClass/")] == ["EC2NodeClass/cpu", "EC2NodeClass/g5-xlarge", "NodePool/cpu", "NodePool/g5-xlarge-on-demand", "NodePool/g5-xlarge-spot"]
    error_message = "no reserved pool"
  }
  assert {
    condition     = !can(output.documents["NodeOverlay/efa-huge-pages"]) && !can(output.documents["DaemonSet/efa-device-plugin"])
    error_message = "no plugin and no huge pages without EFA"
  }
}
