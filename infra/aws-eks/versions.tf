terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.100" }
  }
}

provider "aws" {
  region = var.region

  default_tags {
    # `convoy infra left` finds what costs money by it.
    tags = { "convoy:stack" = var.name }
  }
}
