"""infra/aws-batch, applied to a stand-in for AWS, and a user of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.campaign import in_full
from tests.infra.terraform import TerraformFolder, copy_repository, initialised, leave_out_waits

VARIABLES = {
    "region": "us-east-1",
    "availability_zone": "us-east-1a",
    "instance_types": '["p4d.24xlarge","p5.48xlarge"]',
    "max_nodes": "4",
    "budget_usd_per_month": "50000",
    "budget_email": "ml@example.com",
    "keep_data": "false",
    "schedule": '{expression="cron(0 6 ? * MON *)",config="../../configs/bench/p4d.yaml"}',
}
WORDS = [f"-var={name}={value}" for name, value in VARIABLES.items()]
NO_SERVICE = """
module "metaflow_service" {
  source = "./no-service"
}
"""
"""In place of the metaflow-service module. Terraform waits 80 s for a database to start, and 80 s for it to end, even
on a stand-in, so only `make campaign` applies the module itself."""
NO_SERVICE_MODULE = """
variable "name" {}
variable "vpc_id" {}
variable "vpc_cidr" {}
variable "subnet_ids" {}
variable "bucket" {}
variable "bucket_arn" {}
variable "keep_data" {}
variable "client_security_group_ids" {}
output "service_url" { value = "http://metaflow.internal:8080" }
output "ui_url" { value = "http://metaflow.internal:3000" }
"""


def applied(folder: Path, url: str) -> TerraformFolder:
    """In a copy of the repository below `folder`. url: endpoint of the stand-in."""
    repository = copy_repository(folder)
    if not in_full():
        leave_out_waits(repository)
        root = repository / "infra" / "aws-batch"
        (root / "no_service_override.tf").write_text(NO_SERVICE)
        (root / "no-service").mkdir()
        (root / "no-service" / "main.tf").write_text(NO_SERVICE_MODULE)
    stack = initialised(repository, "aws-batch", url)
    stack.run("apply", "-auto-approve", "-input=false", "-no-color", *WORDS)
    return stack


class User:
    """What a user has after `terraform apply`."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        credentials = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "METAFLOW_"))},
            **credentials,
            "AWS_ENDPOINT_URL": url,
            "METAFLOW_SERVICE_URL": url,  # in place of the launcher's tunnel
            "METAFLOW_HOME": str(folder / "metaflow"),
            "METAFLOW_PROFILE": "convoy",
        }

    def convoy(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "convoy", "infra", *words]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, cwd=self.folder)

    def missing(self) -> list[str]:
        """Names of the checks that are not ok."""
        done = self.convoy("check", "my.yaml", "--json")
        assert done.stdout, done.stderr
        return [each["name"] for each in json.loads(done.stdout) if each["status"] != "ok"]
