variable "name" {
  type        = string
  description = "Name of the stack and of the budget."
}

variable "usd_per_month" {
  type        = number
  description = "Limit of the account's costs in a month, in US dollars."

  validation {
    condition     = var.usd_per_month > 0
    error_message = "budget_usd_per_month = ${var.usd_per_month}: must be greater than 0."
  }
}

variable "email" {
  type        = string
  description = "Address that the alerts go to."

  validation {
    condition     = can(regex("^[^@ ]+@[^@ ]+\\.[^@ ]+$", var.email))
    error_message = "budget_email = ${var.email}: must be an e-mail address."
  }
}

variable "region" {
  type        = string
  description = "Region of the prices."
}

variable "instance_types" {
  type        = list(string)
  description = "Types of machines."
}

variable "max_nodes" {
  type        = number
  description = "Most machines of one type at once."
}

variable "markets" {
  type        = list(string)
  description = "How machines are bought: keys of platform/convoy/catalog/prices.json."
}
