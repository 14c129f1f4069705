# What AWS would answer, where a test or a schema needs more than a random text.

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
  defaults = { instance_types = ["p4d.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "g5.xlarge"] }
}

mock_resource "aws_security_group" {
  defaults = { id = "sg-0123456789abcdef0" }
}

mock_resource "aws_ecr_repository" {
  defaults = { repository_url = "123456789012.dkr.ecr.us-east-1.amazonaws.com/convoy" }
}

mock_resource "aws_iam_role" {
  defaults = { arn = "arn:aws:iam::123456789012:role/mocked" }
}

mock_resource "aws_iam_policy" {
  defaults = { arn = "arn:aws:iam::123456789012:policy/mocked" }
}

mock_resource "aws_kms_key" {
  defaults = { arn = "arn:aws:kms:us-east-1:123456789012:key/mocked" }
}

mock_resource "aws_sqs_queue" {
  defaults = { arn = "arn:aws:sqs:us-east-1:123456789012:mocked", url = "https://sqs/mocked" }
}

mock_resource "aws_cloudwatch_event_rule" {
  defaults = { arn = "arn:aws:events:us-east-1:123456789012:rule/mocked" }
}

mock_resource "aws_launch_template" {
  defaults = { id = "lt-0123456789abcdef0", latest_version = 1 }
}

mock_resource "aws_fsx_lustre_file_system" {
  defaults = { id = "fs-0123456789abcdef0", dns_name = "fs.internal", mount_name = "abcdefgh" }
}
