variable "name" {
  type        = string
  description = "Name of the stack, with which the names of the service's parts begin."

  validation {
    condition     = !strcontains(var.name, "--")
    error_message = "name = ${var.name}: must not have two hyphens in a row, which RDS refuses in a name."
  }
}

variable "vpc_id" {
  type        = string
  description = "VPC of the service."
}

variable "vpc_cidr" {
  type        = string
  description = "Address block of the VPC, in which the load balancer reaches the tasks."

  validation {
    condition     = can(cidrnetmask(var.vpc_cidr)) && try(tonumber(split("/", var.vpc_cidr)[1]) >= 16, false)
    error_message = "vpc_cidr = ${var.vpc_cidr}: must be the IPv4 block of a VPC, which is /16 or smaller, and not open to the world."
  }
}

variable "subnet_ids" {
  type        = list(string)
  description = "Private subnets in at least two zones."

  validation {
    condition     = length(var.subnet_ids) >= 2
    error_message = "subnet_ids = ${jsonencode(var.subnet_ids)}: must be subnets in at least two zones, which the database and the load balancer require."
  }
}

variable "client_security_group_ids" {
  type        = map(string)
  description = "Security groups that may reach the service and the UI, by a name of each. Nobody else may."

  validation {
    condition     = length(var.client_security_group_ids) > 0
    error_message = "client_security_group_ids = {}: must have at least one security group, or nobody can reach the service."
  }
}

variable "bucket" {
  type        = string
  description = "Bucket of Metaflow's datastore, which is below its prefix metaflow/."
}

variable "bucket_arn" {
  type        = string
  description = "ARN of the bucket."
}

variable "keep_data" {
  type        = bool
  description = "Whether destroy leaves a snapshot of the database."
}
