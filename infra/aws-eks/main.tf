# Metaflow and Convoy on Kubernetes: everything that a gang on p4d or p5 needs, from an empty account.

data "aws_caller_identity" "current" {}

data "aws_ec2_instance_type_offerings" "zone" {
  location_type = "availability-zone"

  filter {
    name   = "instance-type"
    values = var.instance_types
  }
  filter {
    name   = "location"
    values = [var.availability_zone]
  }

  lifecycle {
    postcondition {
      condition     = length(setsubtract(var.instance_types, self.instance_types)) == 0
      error_message = "availability_zone = ${var.availability_zone}: AWS offers no ${join(", ", setsubtract(var.instance_types, self.instance_types))} there."
    }
  }
}

locals {
  account  = data.aws_caller_identity.current.account_id
  versions = jsondecode(file("${path.module}/../kubernetes/versions.json"))

  namespace       = "convoy"
  service_account = "convoy"
  # Kubernetes group of those who start runs.
  submitters = "convoy-submitters"
}

module "gpu_nodes" {
  source         = "../modules/gpu-nodes"
  instance_types = var.instance_types
  backend        = "kubernetes"
}

module "network" {
  source            = "../modules/network"
  name              = var.name
  availability_zone = var.availability_zone
}

module "datastore" {
  source    = "../modules/datastore"
  name      = var.name
  keep_data = var.keep_data
}

module "fsx" {
  source                   = "../modules/fsx"
  count                    = var.fsx_gib == 0 ? 0 : 1
  name                     = var.name
  gib                      = var.fsx_gib
  efa                      = false
  vpc_id                   = module.network.vpc_id
  subnet_id                = module.network.gang_subnet_id
  client_security_group_id = module.network.gang_security_group_id
  bucket                   = module.datastore.bucket
}

module "iam" {
  source  = "../modules/iam"
  name    = var.name
  backend = "kubernetes"
  bucket  = module.datastore.bucket
  account = local.account
  region  = var.region
}

module "metaflow_service" {
  source     = "../modules/metaflow-service"
  name       = var.name
  vpc_id     = module.network.vpc_id
  vpc_cidr   = module.network.vpc_cidr
  subnet_ids = module.network.subnet_ids
  bucket     = module.datastore.bucket
  bucket_arn = module.datastore.bucket_arn
  keep_data  = var.keep_data
  client_security_group_ids = {
    gang     = module.network.gang_security_group_id
    launcher = module.launcher.security_group_id
  }
}

module "launcher" {
  source      = "../modules/launcher"
  name        = var.name
  vpc_id      = module.network.vpc_id
  subnet_id   = module.network.gang_subnet_id
  policy_arns = { task = module.iam.task_policy_arn, submit = module.iam.submit_policy_arn }
  service_url = module.metaflow_service.service_url
  ui_url      = module.metaflow_service.ui_url
  region      = var.region
}

module "cost_guard" {
  source         = "../modules/cost-guard"
  name           = var.name
  usd_per_month  = var.budget_usd_per_month
  email          = var.budget_email
  region         = var.region
  instance_types = var.instance_types
  max_nodes      = var.max_nodes
  markets = concat(
    ["on_demand", "spot"],
    contains([for each in values(var.reservations) : each.kind], "capacity_block") ? ["capacity_block"] : [],
  )
}

resource "aws_ecr_repository" "this" {
  name                 = var.name
  image_tag_mutability = "IMMUTABLE"
  force_delete         = !var.keep_data

  image_scanning_configuration {
    scan_on_push = true
  }
  encryption_configuration {
    encryption_type = "KMS"
  }
}

# Machines of one type near each other. A reservation has its own place.
resource "aws_placement_group" "gang" {
  for_each = toset(var.instance_types)
  name     = local.placement_groups[each.key]
  strategy = "cluster"
}
