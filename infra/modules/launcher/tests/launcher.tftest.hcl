mock_provider "aws" {
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_data "aws_ssm_parameter" {
    defaults = { insecure_value = "ami-0123456789abcdef0" }
  }
  mock_resource "aws_instance" {
    defaults = { id = "i-0123456789abcdef0" }
  }
}

variables {
  name        = "convoy"
  region      = "eu-west-1"
  vpc_id      = "vpc-1"
  subnet_id   = "subnet-1"
  policy_arns = { submit = "arn:aws:iam::123456789012:policy/convoy-submit" }
  service_url = "http://internal-convoy.elb.amazonaws.com:8080"
  ui_url      = "http://internal-convoy.elb.amazonaws.com:3000"
}

run "launcher" {
  command = apply

  # Nobody can connect to it.
  assert {
    condition     = length(aws_security_group.this.ingress) == 0
    error_message = "The group must have no ingress rule."
  }
  assert {
    condition     = toset([for rule in aws_vpc_security_group_egress_rule.this : rule.from_port]) == toset([443, 8080, 3000]) && alltrue([for rule in aws_vpc_security_group_egress_rule.this : rule.ip_protocol == "tcp" && rule.to_port == rule.from_port])
    error_message = "It may connect to HTTPS, the metadata service and the UI, and to nothing else."
  }
  assert {
    condition     = aws_instance.this.vpc_security_group_ids == toset([aws_security_group.this.id])
    error_message = "It must be in its own group alone."
  }

  # Pods and containers on it cannot take its role.
  assert {
    condition     = aws_instance.this.metadata_options[0].http_tokens == "required" && aws_instance.this.metadata_options[0].http_put_response_hop_limit == 1
    error_message = "The metadata service must be version 2 with a hop limit of 1."
  }
  assert {
    condition     = aws_instance.this.root_block_device[0].encrypted && aws_instance.this.root_block_device[0].volume_type == "gp3"
    error_message = "The volume must be encrypted gp3."
  }

  # Role has sessions and the given policies alone.
  assert {
    condition     = aws_iam_role_policy_attachment.session.policy_arn == "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
    error_message = "Session Manager needs AWS's policy."
  }
  assert {
    condition     = { for key, each in aws_iam_role_policy_attachment.given : key => each.policy_arn } == { submit = "arn:aws:iam::123456789012:policy/convoy-submit" }
    error_message = "The role must have the given policies."
  }
  assert {
    condition     = aws_iam_instance_profile.this.role == aws_iam_role.this.name && jsondecode(aws_iam_role.this.assume_role_policy).Statement == [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "ec2.amazonaws.com" } }]
    error_message = "EC2 alone may take the role."
  }

  # Login shell knows the service.
  assert {
    condition     = startswith(aws_instance.this.user_data, "#!/bin/bash\n") && strcontains(aws_instance.this.user_data, "git python3.11 ")
    error_message = "The first start must install git and Python."
  }
  assert {
    condition     = strcontains(aws_instance.this.user_data, "\ncat > /etc/profile.d/metaflow.sh <<'END'\nexport AWS_DEFAULT_REGION=eu-west-1\nexport METAFLOW_SERVICE_URL=http://internal-convoy.elb.amazonaws.com:8080\nEND\n")
    error_message = "A login shell must have the region and the service's internal address."
  }
  assert {
    condition     = aws_instance.this.user_data_replace_on_change
    error_message = "A new address must reach the machine."
  }

  # Commands.
  assert {
    condition = output.commands == {
      instance_id       = "i-0123456789abcdef0"
      shell_command     = "aws ssm start-session --region eu-west-1 --target i-0123456789abcdef0 --document-name AWS-StartInteractiveCommand --parameters command='cd; exec bash -l'"
      tunnel_command    = "aws ssm start-session --region eu-west-1 --target i-0123456789abcdef0 --document-name AWS-StartPortForwardingSessionToRemoteHost --parameters host=internal-convoy.elb.amazonaws.com,portNumber=8080,localPortNumber=8080"
      ui_tunnel_command = "aws ssm start-session --region eu-west-1 --target i-0123456789abcdef0 --document-name AWS-StartPortForwardingSessionToRemoteHost --parameters host=internal-convoy.elb.amazonaws.com,portNumber=3000,localPortNumber=3000"
    }
    error_message = "commands = ${jsonencode(output.commands)}"
  }
  assert {
    condition     = output.instance_id == "i-0123456789abcdef0" && output.security_group_id == aws_security_group.this.id
    error_message = "The outputs must be the machine and its group."
  }
}

run "local_port_of_the_service_is_that_of_the_profile" {
  command = apply

  variables {
    service_url = "http://service.internal:18080"
  }
  assert {
    condition     = endswith(output.commands.tunnel_command, "host=service.internal,portNumber=18080,localPortNumber=8080")
    error_message = "tunnel_command = ${output.commands.tunnel_command}"
  }
}
