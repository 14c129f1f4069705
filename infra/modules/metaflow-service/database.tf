locals {
  # Of the image in infra/local, so that both are of one major version.
  postgres = regex(":([0-9]+)", local.images.postgres)[0]
  database = jsondecode(file("${path.module}/environment.json")).services.metadata.environment
}

resource "aws_db_subnet_group" "this" {
  name       = "${var.name}-metaflow"
  subnet_ids = var.subnet_ids
  tags       = { Name = "${var.name}-metaflow" }
}

resource "aws_db_parameter_group" "this" {
  name   = "${var.name}-metaflow-postgres${local.postgres}"
  family = "postgres${local.postgres}"
  tags   = { Name = "${var.name}-metaflow" }

  parameter {
    name  = "rds.force_ssl"
    value = "1"
  }
}

# One zone: when the database is away, Metaflow's clients try again, and gangs go on training meanwhile.
resource "aws_db_instance" "this" {
  identifier     = "${var.name}-metaflow"
  engine         = "postgres"
  engine_version = local.postgres
  instance_class = "db.t4g.small"
  db_name        = local.database.MF_METADATA_DB_NAME
  username       = local.database.MF_METADATA_DB_USER
  port           = tonumber(local.database.MF_METADATA_DB_PORT)
  tags           = { Name = "${var.name}-metaflow" }

  manage_master_user_password = true # RDS makes the password, and Secrets Manager holds it: it is in no state file.

  storage_type          = "gp3"
  allocated_storage     = 20
  max_allocated_storage = 100
  storage_encrypted     = true

  db_subnet_group_name   = aws_db_subnet_group.this.name
  vpc_security_group_ids = [aws_security_group.database.id]
  parameter_group_name   = aws_db_parameter_group.this.name
  publicly_accessible    = false

  backup_retention_period    = 7
  copy_tags_to_snapshot      = true
  auto_minor_version_upgrade = true

  skip_final_snapshot = !var.keep_data
  # Unique, or the second stack of this name could not be destroyed.
  final_snapshot_identifier = "${var.name}-metaflow-${formatdate("YYYYMMDDhhmmss", timestamp())}"

  lifecycle {
    ignore_changes = [final_snapshot_identifier]
  }
}
