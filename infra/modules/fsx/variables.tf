variable "name" {
  type        = string
  description = "Name of the stack."
}

variable "gib" {
  type        = number
  description = "Size of the file system, in GiB."

  validation {
    condition     = var.gib == 1200 || (var.gib > 0 && var.gib % 2400 == 0)
    error_message = "fsx_gib = ${var.gib}: must be 1200 or a multiple of 2400."
  }
}

variable "efa" {
  type        = bool
  description = "Whether clients reach it over EFA."
}

variable "vpc_id" {
  type = string
}

variable "subnet_id" {
  type        = string
  description = "In the gang's zone."
}

variable "client_security_group_id" {
  type        = string
  description = "Group of the machines that mount it."
}

variable "bucket" {
  type        = string
  description = "Bucket whose folder fsx/ has the same files."
}
