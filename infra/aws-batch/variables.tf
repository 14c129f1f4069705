variable "name" {
  type        = string
  default     = "convoy"
  description = "Name of the stack; the names of its parts begin with it."

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
  description = "Zone of all machines of a gang, e.g. us-east-1a."

  validation {
    condition     = startswith(var.availability_zone, var.region)
    error_message = "availability_zone = ${var.availability_zone}: must be a zone of region = ${var.region}."
  }
}

variable "instance_types" {
  type        = list(string)
  description = "Types of machines that gangs run on, e.g. [\"p4d.24xlarge\"]; each gets a job queue."
}

variable "max_nodes" {
  type        = number
  description = "Most machines of one type at once."

  validation {
    condition     = var.max_nodes >= 1 && floor(var.max_nodes) == var.max_nodes
    error_message = "max_nodes = ${var.max_nodes}: must be a whole number, at least 1."
  }
}

variable "market" {
  type        = string
  default     = "on_demand"
  description = "How machines of gangs are bought: on_demand, or reserved (in `reservations`)."

  validation {
    condition     = var.market != "spot"
    error_message = "market = spot: AWS Batch runs no multi-node jobs on spot instances; use on_demand or reserved, or the stack infra/aws-eks."
  }
  validation {
    condition     = contains(["on_demand", "reserved", "spot"], var.market)
    error_message = "market = ${var.market}: must be on_demand or reserved."
  }
}

variable "reservations" {
  type = map(object({
    id    = string
    count = number
    kind  = string
  }))
  default     = {}
  description = "With market = reserved, for each type: its capacity reservation, the machines in it, and its kind (reservation or capacity_block)."

  validation {
    condition     = alltrue([for each in values(var.reservations) : can(regex("^cr-[0-9a-f]{17}$", each.id))])
    error_message = "reservations: each id must be that of a capacity reservation, cr- and 17 hexadecimal digits."
  }
  validation {
    condition     = alltrue([for each in values(var.reservations) : contains(["reservation", "capacity_block"], each.kind)])
    error_message = "reservations: each kind must be reservation or capacity_block."
  }
  validation {
    condition     = var.market != "reserved" || alltrue([for name in var.instance_types : contains(keys(var.reservations), name)])
    error_message = "market = reserved: reservations must have an entry for each of instance_types."
  }
  validation {
    condition     = var.market == "reserved" || length(var.reservations) == 0
    error_message = "reservations: needs market = reserved."
  }
  validation {
    condition     = alltrue([for each in values(var.reservations) : each.count >= var.max_nodes])
    error_message = "reservations: each count must be at least max_nodes = ${var.max_nodes}."
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

variable "fsx_efa" {
  type        = bool
  default     = false
  description = "Whether the file system can be reached over EFA. Machines mount it over TCP until they run AWS's setup of EFA clients."
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

variable "schedule" {
  type = object({
    expression = string
    config     = string
  })
  default     = null
  description = "When the benchmark runs, e.g. cron(0 6 ? * MON *), and the file of its configuration. Default: never."

  validation {
    condition     = var.schedule == null || can(regex("^(cron|rate)\\(.+\\)$", var.schedule.expression))
    error_message = "schedule.expression = ${try(var.schedule.expression, "")}: must be cron(...) or rate(...)."
  }
  validation {
    condition     = var.schedule == null || can(yamldecode(file(var.schedule.config)))
    error_message = "schedule.config = ${try(var.schedule.config, "")}: must be a YAML file."
  }
}

variable "create_batch_role" {
  type        = bool
  default     = true
  description = "Whether to create the service-linked role of AWS Batch. Set it to false if the account has used Batch before: AWS then says that the role name has been taken."
}
