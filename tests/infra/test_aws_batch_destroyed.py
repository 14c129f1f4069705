"""infra/aws-batch is applied to a stand-in for AWS, and destroyed. Destroying takes over a minute, most of which
Terraform waits; the tests of test_aws_batch.py run at the same time."""

from pathlib import Path

import pytest

from tests.infra.batch_stack import WORDS, User
from tests.infra.terraform import TerraformFolder

pytestmark = [pytest.mark.infra, pytest.mark.campaign]


def test_it_leaves_nothing(batch_stack: TerraformFolder, aws_url: str, tmp_path: Path) -> None:
    user = User(tmp_path, aws_url)
    assert user.convoy("left", "convoy", "--region", "us-east-1").returncode == 1
    batch_stack.run("destroy", "-auto-approve", "-input=false", "-no-color", "-refresh=false", *WORDS)
    done = user.convoy("left", "convoy", "--region", "us-east-1")
    assert done.returncode == 0, done.stdout
