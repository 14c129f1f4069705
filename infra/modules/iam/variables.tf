variable "name" {
  type        = string
  description = "Name of the stack, with which the names of its roles, job queues and cluster begin."
}

variable "backend" {
  type        = string
  description = "Where tasks run: batch or kubernetes."

  validation {
    condition     = contains(["batch", "kubernetes"], var.backend)
    error_message = "backend = ${var.backend}: must be batch or kubernetes."
  }
}

variable "bucket" {
  type        = string
  description = "Bucket of artifacts, jobs and corpora."
}

variable "account" {
  type        = string
  description = "AWS account id."
}

variable "region" {
  type        = string
  description = "AWS region."
}
