# What AWS says of itself, and ids and ARNs of the form that the provider expects.

mock_data "aws_caller_identity" {
  defaults = { account_id = "123456789012" }
}

mock_data "aws_region" {
  defaults = { name = "us-east-1" }
}

mock_data "aws_availability_zones" {
  defaults = { names = ["us-east-1a", "us-east-1b"] }
}

mock_data "aws_ec2_instance_type_offerings" {
  defaults = { instance_types = ["p4d.24xlarge", "p5.48xlarge", "p5en.48xlarge"] }
}

mock_resource "aws_iam_instance_profile" {
  defaults = { arn = "arn:aws:iam::123456789012:instance-profile/convoy-machine" }
}

mock_resource "aws_iam_policy" {
  defaults = { arn = "arn:aws:iam::123456789012:policy/convoy" }
}

mock_resource "aws_iam_role" {
  defaults = { arn = "arn:aws:iam::123456789012:role/convoy" }
}

mock_resource "aws_batch_compute_environment" {
  defaults = { arn = "arn:aws:batch:us-east-1:123456789012:compute-environment/convoy" }
}

mock_resource "aws_batch_job_queue" {
  defaults = { arn = "arn:aws:batch:us-east-1:123456789012:job-queue/convoy" }
}

mock_resource "aws_batch_job_definition" {
  defaults = { arn = "arn:aws:batch:us-east-1:123456789012:job-definition/convoy:1" }
}

mock_resource "aws_fsx_lustre_file_system" {
  defaults = { id = "fs-0123456789abcdef0", dns_name = "fs.example", mount_name = "mnt" }
}

mock_resource "aws_security_group" {
  defaults = { id = "sg-0123456789abcdef0" }
}

mock_resource "aws_ecr_repository" {
  defaults = { repository_url = "123456789012.dkr.ecr.us-east-1.amazonaws.com/convoy" }
}

mock_resource "aws_iam_service_linked_role" {
  defaults = { arn = "arn:aws:iam::123456789012:role/aws-service-role/batch.amazonaws.com/AWSServiceRoleForBatch" }
}
