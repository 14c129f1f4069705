# The documents of a YAML stream by kind and name, for the tests of the manifests.

variable "manifests" {
  type = string
}

output "documents" {
  value = {
    for document in [for each in split("\n---\n", var.manifests) : yamldecode(each)] :
    "${document.kind}/${document.metadata.name}" => document
  }
}
