"""A bucket for the tests of this folder."""

import uuid

import pytest
from mypy_boto3_s3 import S3Client


@pytest.fixture
def bucket(s3_environment: str, s3_client: S3Client) -> str:
    """The name of a new bucket; the environment points to its server."""
    name = f"bucket-{uuid.uuid4().hex[:8]}"
    s3_client.create_bucket(Bucket=name)
    return name
