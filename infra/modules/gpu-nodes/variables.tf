variable "instance_types" {
  type        = list(string)
  description = "Types of machines that gangs run on, as in platform/convoy/catalog/instances.json."

  validation {
    condition     = length(var.instance_types) > 0 && length(distinct(var.instance_types)) == length(var.instance_types)
    error_message = "instance_types: must name at least one type, and each type once."
  }
  validation {
    condition = alltrue([
      for name in var.instance_types :
      contains(keys(jsondecode(file("${path.module}/../../../platform/convoy/catalog/instances.json")).instances), name)
    ])
    error_message = "instance_types = ${join(", ", var.instance_types)}: must be types of the catalog, platform/convoy/catalog/instances.json."
  }
}

variable "backend" {
  type        = string
  description = "Who starts the machines: batch or kubernetes."

  validation {
    condition     = contains(["batch", "kubernetes"], var.backend)
    error_message = "backend = ${var.backend}: must be batch or kubernetes."
  }
}
