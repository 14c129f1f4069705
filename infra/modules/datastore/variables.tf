variable "name" {
  type        = string
  description = "Name of the stack; the bucket is named after it, the account and the region."
}

variable "keep_data" {
  type        = bool
  description = "Whether destroy refuses to delete a bucket that is not empty."
}
