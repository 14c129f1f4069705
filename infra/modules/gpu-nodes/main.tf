# The network interfaces of machines that gangs run on, and what the catalog knows of their types. This module creates nothing.

terraform {
  required_version = ">= 1.11"
}

locals {
  catalog = jsondecode(file("${path.module}/../../../platform/convoy/catalog/instances.json")).instances
  types   = { for name in var.instance_types : name => local.catalog[name] }

  # The first interface has the address of the machine, so it cannot be efa-only. AWS Batch attaches another interface to
  # card 0 for each task of a multi-node job (awsvpc). Where card 0 takes only two interfaces, as on p5 and p5e, its EFA
  # adapter must therefore be the first interface itself. Instance.interfaces in catalog/instances.py computes the same.
  first = {
    for name, facts in local.types : name => (
      facts.efa_interfaces == 0 ? ["interface"] :
      var.backend == "batch" && facts.interfaces_per_card == 2 ? ["efa"] :
      ["interface", "efa-only"]
    )
  }
  interfaces = {
    for name, facts in local.types : name => concat(
      [
        for index, type in local.first[name] :
        { network_card_index = 0, device_index = index, interface_type = type }
      ],
      [
        for card in range(1, max(1, facts.efa_interfaces)) :
        { network_card_index = card, device_index = 0, interface_type = "efa-only" }
      ]
    )
  }
}
