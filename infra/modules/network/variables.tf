variable "name" {
  type        = string
  description = "Name of the stack."
}

variable "availability_zone" {
  type        = string
  description = "Zone of all machines of a gang."
}

variable "has_task_interfaces" {
  type        = bool
  default     = false
  description = "Whether tasks have network interfaces of their own, in the default security group."
}
