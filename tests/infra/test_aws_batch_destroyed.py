"""infra/aws-batch is applied to a stand-in for AWS, and destroyed. Terraform waits for a minute then, whoever answers:
test_aws_batch.py goes on meanwhile."""

from pathlib import Path

import pytest

from tests.infra.batch_stack import WORDS, Account
from tests.infra.terraform import Stack

pytestmark = [pytest.mark.infra, pytest.mark.campaign]


def test_it_leaves_nothing(batch_stack: Stack, aws_url: str, tmp_path: Path) -> None:
    user = Account(tmp_path, aws_url)
    assert user.convoy("left", "convoy", "--region", "us-east-1").returncode == 1
    batch_stack.run("destroy", "-auto-approve", "-input=false", "-no-color", "-refresh=false", *WORDS)
    done = user.convoy("left", "convoy", "--region", "us-east-1")
    assert done.returncode == 0, done.stdout
