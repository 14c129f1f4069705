variable "name" {
  type        = string
  default     = "convoy"
  description = "Name of the stack and of the cluster; the names of its parts begin with it."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,18}[a-z0-9]$", var.name))
    error_message = "name = ${var.name}: must be 2 to 20 lower-case letters, digits and hyphens, and begin with a letter."
  }
}

variable "region" {
  type        = string
  description = "AWS region."
}

variable "availability_zone" {
  type        = string
  description = "Zone of all machines that run tasks, e.g. us-east-1a."

  validation {
    condition     = startswith(var.availability_zone, var.region)
    error_message = "availability_zone = ${var.availability_zone}: must be a zone of region = ${var.region}."
  }
}

variable "instance_types" {
  type        = list(string)
  description = "Types of GPU machines, e.g. [\"p5.48xlarge\"]; each gets a pool on demand and one on spot."
}

variable "max_nodes" {
  type        = number
  description = "Most machines of one type at once, in each market."

  validation {
    condition     = var.max_nodes >= 1 && floor(var.max_nodes) == var.max_nodes
    error_message = "max_nodes = ${var.max_nodes}: must be a whole number, at least 1."
  }
}

variable "reservations" {
  type = map(object({
    id    = string
    count = number
    kind  = string
  }))
  default     = {}
  description = "Types of which machines are reserved, each with its capacity reservation, the machines in it, and its kind (reservation or capacity_block); each gets a third pool. The reservation must be targeted, and in no placement group."

  validation {
    condition     = alltrue([for name in keys(var.reservations) : contains(var.instance_types, name)])
    error_message = "reservations = ${join(", ", keys(var.reservations))}: each must be one of instance_types = ${join(", ", var.instance_types)}."
  }
  validation {
    condition     = alltrue([for each in values(var.reservations) : can(regex("^cr-[0-9a-f]{17}$", each.id))])
    error_message = "reservations: each id must be that of a capacity reservation, cr- and 17 hexadecimal digits, unlike ${join(", ", [for each in values(var.reservations) : each.id])}."
  }
  validation {
    condition     = alltrue([for each in values(var.reservations) : each.count >= 1 && floor(each.count) == each.count])
    error_message = "reservations: each count must be a whole number, at least 1, unlike ${join(", ", [for each in values(var.reservations) : each.count])}."
  }
  validation {
    condition     = alltrue([for each in values(var.reservations) : contains(["reservation", "capacity_block"], each.kind)])
    error_message = "reservations: each kind must be reservation or capacity_block, unlike ${join(", ", [for each in values(var.reservations) : each.kind])}."
  }
}

variable "kubernetes_version" {
  type        = string
  default     = "1.36"
  description = "Version of Kubernetes, from 1.36 on: the first in which the policy that gives pods a grace period is stable."

  validation {
    condition     = can(regex("^1\\.[0-9]+$", var.kubernetes_version)) && try(tonumber(split(".", var.kubernetes_version)[1]), 0) >= 36
    error_message = "kubernetes_version = ${var.kubernetes_version}: must be 1.36 or later."
  }
}

variable "api_cidrs" {
  type        = list(string)
  default     = []
  description = "Networks that reach the cluster's API server over the internet, e.g. [\"203.0.113.7/32\"]. Default: none; the launcher always does."

  validation {
    # A mask is what IPv4 networks have. 0.0.0.0/0 can be written as two networks of /1.
    condition     = alltrue([for each in var.api_cidrs : can(cidrnetmask(each)) && try(tonumber(split("/", each)[1]), 0) >= 8])
    error_message = "api_cidrs = ${join(", ", var.api_cidrs)}: must be IPv4 networks, none larger than a /8, so that the API server is not open to everyone."
  }
}

variable "budget_usd_per_month" {
  type        = number
  description = "Limit of the account's monthly costs, in US dollars; alerts go out at 50, 80 and 100 %."
}

variable "budget_email" {
  type        = string
  description = "Address that the alerts go to."
}

variable "fsx_gib" {
  type        = number
  default     = 0
  description = "Size of an FSx for Lustre file system, in GiB: 1200 or a multiple of 2400. 0: none."
}

variable "image" {
  type        = string
  default     = null
  description = "Container image of tasks. Default: the repository of this stack, with the version of Convoy as its tag."
}

variable "keep_data" {
  type        = bool
  default     = true
  description = "Whether the bucket, the database's last snapshot and the images stay after destroy."
}
