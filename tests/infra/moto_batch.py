"""Make moto's Batch behave as AWS does: take a compute environment without security groups if its launch template has
network interfaces, and refuse one that has both."""

from typing import Any
from unittest.mock import patch

from moto.batch.exceptions import ClientException
from moto.batch.models import BatchBackend

GROUPS_AND_INTERFACES_ERROR = (
    "Either compute environment Security Groups or Network Interfaces in Launch template are exclusively allowed"
)

_validate = BatchBackend._validate_compute_resources


def _validate_groups_too(backend: BatchBackend, resources: dict[str, Any]) -> None:
    named = resources.get("launchTemplate") or {}
    templates = backend.ec2_backend.describe_launch_templates(
        template_names=[named["launchTemplateName"]] if "launchTemplateName" in named else None,
        template_ids=[named["launchTemplateId"]] if "launchTemplateId" in named else None,
    ) if named else []  # fmt: skip
    if any(each.latest_version().data.get("NetworkInterface") or each.latest_version().data.get("NetworkInterfaces")
           for each in templates):  # fmt: skip
        if resources.get("securityGroupIds"):
            raise ClientException(f"Error executing request, Exception : {GROUPS_AND_INTERFACES_ERROR}")
        groups = [name for of_vpc in backend.ec2_backend.groups.values() for name in of_vpc]
        resources = {**resources, "securityGroupIds": groups[:1]}
    _validate(backend, resources)


def as_aws_validates() -> Any:
    """A patch to start."""
    return patch.object(BatchBackend, "_validate_compute_resources", _validate_groups_too)
