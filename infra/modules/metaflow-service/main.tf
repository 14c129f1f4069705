# Metaflow's metadata service, and its UI, on Fargate behind an internal load balancer.
#
# environment.json holds the commands and the environment of the containers. It has the form of a compose file, so that
# infra/local starts the same services from it. Both Terraform and compose fill in its ${NAMES}.
#
# Where the images of infra/kubernetes/versions.json come from:
# - metaflow-service: Docker Hub; the release workflow of github.com/Netflix/metaflow-service publishes it there. The one
#   image has the metadata service, the migrations of its database and the UI's backend.
# - metaflow-ui: Amazon ECR Public, where Outerbounds publishes the front end. Its repository,
#   github.com/Netflix/metaflow-ui, has a Dockerfile but publishes no image.

terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.100" }
  }
}

data "aws_region" "current" {}

locals {
  images = jsondecode(file("${path.module}/../../kubernetes/versions.json")).images

  services = jsondecode(templatefile("${path.module}/environment.json", {
    DB_HOST = aws_db_instance.this.address
    # Encrypts, but does not check the server's certificate: the image has no root certificates of RDS.
    DB_SSL_MODE    = "require"
    DATASTORE_ROOT = "s3://${var.bucket}/metaflow"
    # Relative to the UI's own address, so that it is right behind any tunnel.
    UI_API = "/api"
  })).services

  ports = { metadata = 8080, ui-backend = 8083, ui = 3000 }
}

resource "aws_ecs_cluster" "this" {
  name = "${var.name}-metaflow"
  tags = { Name = "${var.name}-metaflow" }
}

resource "aws_cloudwatch_log_group" "this" {
  name              = "${var.name}-metaflow"
  retention_in_days = 30
  tags              = { Name = "${var.name}-metaflow" }
}
