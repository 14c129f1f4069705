variable "name" {
  type        = string
  description = "Name of the stack, with which the names of the launcher's parts begin."
}

variable "region" {
  type        = string
  description = "AWS region."
}

variable "vpc_id" {
  type        = string
  description = "VPC of the launcher."
}

variable "subnet_id" {
  type        = string
  description = "Private subnet whose route to the internet is a NAT gateway."
}

variable "policy_arns" {
  type        = map(string)
  description = "Policies for what is done on the launcher (start runs, read the datastore), by a name of each."
}

variable "service_url" {
  type        = string
  description = "Metadata service, from inside the VPC."

  validation {
    condition     = can(regex("^http://[^:/]+:[0-9]+$", var.service_url))
    error_message = "service_url = ${var.service_url}: must be http://HOST:PORT."
  }
}

variable "ui_url" {
  type        = string
  description = "UI, from inside the VPC."

  validation {
    condition     = can(regex("^http://[^:/]+:[0-9]+$", var.ui_url))
    error_message = "ui_url = ${var.ui_url}: must be http://HOST:PORT."
  }
}
