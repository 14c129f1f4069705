"""What tests of infra/ share."""

import os
from collections.abc import Iterator

import pytest

from tests.infra.aws import AwsStandIn
from tests.infra.batch_stack import applied
from tests.infra.terraform import TerraformFolder

# Moto would read the descriptions of hundreds of images for each account: half the time of the tests of `check`.
os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")


@pytest.fixture(scope="module")
def aws_url() -> Iterator[str]:
    """Endpoint of a stand-in for AWS that nobody else uses."""
    with AwsStandIn() as aws:
        yield aws.url


@pytest.fixture(scope="module")
def batch_stack(aws_url: str, tmp_path_factory: pytest.TempPathFactory) -> TerraformFolder:
    """infra/aws-batch, applied."""
    return applied(tmp_path_factory.mktemp("applied"), aws_url)
