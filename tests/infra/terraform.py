"""Terraform on copies of the stacks. It is found on PATH, and its providers in $TF_PLUGIN_DIR, or else in the registry
(tools/check_terraform.sh says how to get both)."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
COPIED = ("infra", "platform/convoy/catalog", "platform/convoy/__init__.py", "configs", "constraints.txt")
"""What the stacks read."""


@dataclass(frozen=True)
class TerraformFolder:
    """A folder of Terraform files in a copy of the repository, such as infra/aws-batch."""

    folder: Path
    environment: dict[str, str]

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`terraform WORDS`. Raises AssertionError with what it printed, if it fails and `check`."""
        command = ["terraform", f"-chdir={self.folder}", *words]
        if "AWS_ENDPOINT_URL" not in self.environment:
            command = ["nice", *command]  # the tests that use a stand-in take longest, so they come first
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=280)
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout[-3000:]}{done.stderr[-6000:]}"
        return done

    def convoy_output(self) -> dict[str, Any]:
        """The output `convoy` of an applied stack, which `convoy infra` reads."""
        found: dict[str, Any] = json.loads(self.run("output", "-json", "convoy").stdout)
        return found


def copy_repository(target: Path) -> Path:
    """The parts of the repository that the stacks read, without what Terraform left in them."""
    for part in COPIED:
        source = REPOSITORY / part
        if source.is_dir():
            ignored = shutil.ignore_patterns(".terraform*", "terraform.tfstate*", "__pycache__")
            shutil.copytree(source, target / part, ignore=ignored, dirs_exist_ok=True)
        else:
            (target / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / part)
    return target


def leave_out_waits(repository: Path) -> None:
    """Leave out of a copy what makes Terraform wait even on a stand-in: 60 s for rules of expiry, 10 s for names."""
    modules = repository / "infra" / "modules"
    expiry = 'resource "aws_s3_bucket_lifecycle_configuration" "this" {\n  count = 0\n}\n'
    (modules / "datastore" / "waits_override.tf").write_text(expiry)
    names = 'resource "aws_vpc" "this" {\n  enable_dns_hostnames = false\n}\n'
    (modules / "network" / "waits_override.tf").write_text(names)


def initialised(repository: Path, name: str, endpoint: str | None = None) -> TerraformFolder:
    """The folder infra/`name` of a copy, ready to plan. endpoint: URL of what stands in for AWS."""
    stack = TerraformFolder(repository / "infra" / name, environment(endpoint))
    plugins = os.environ.get("TF_PLUGIN_DIR")
    stack.run("init", "-input=false", "-no-color", *([f"-plugin-dir={plugins}"] if plugins else []))
    return stack


def environment(endpoint: str | None) -> dict[str, str]:
    """For Terraform: of AWS nothing but the stand-in, and no credentials of this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TF_CLI"))}
    there = {"AWS_ENDPOINT_URL": endpoint} if endpoint else {}
    credentials = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
    # Memory for time: a quarter of what the provider of AWS computes at each of its many starts is collecting garbage.
    return kept | there | credentials | {"TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1", "GOGC": "400"}
