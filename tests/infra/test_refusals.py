"""What cannot work is refused by a plan, in one line that names the variable, its value and what it must be.

Terraform gets the variables of a folder alone, so that each plan takes a fraction of a second. What is refused only
once AWS has answered is tested in infra/aws-batch/tests/refusals.tftest.hcl, and that of aws-eks.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.infra.terraform import TerraformFolder, copy_repository, environment

pytestmark = pytest.mark.infra

STACK = {
    "region": "us-east-1",
    "availability_zone": "us-east-1a",
    "instance_types": ["p4d.24xlarge"],
    "max_nodes": 4,
    "budget_usd_per_month": 50000,
    "budget_email": "ml@example.com",
}
MODULES: dict[str, dict[str, Any]] = {
    "modules/gpu-nodes": {"instance_types": ["p4d.24xlarge"], "backend": "batch"},
    "modules/cost-guard": {
        "name": "convoy", "usd_per_month": 10, "email": "ml@example.com", "region": "us-east-1",
        "instance_types": ["p4d.24xlarge"], "max_nodes": 4, "markets": ["on_demand"],
    },
    "modules/fsx": {
        "name": "convoy", "gib": 1200, "efa": False, "vpc_id": "vpc-1", "subnet_id": "subnet-1",
        "client_security_group_id": "sg-1", "bucket": "bucket",
    },
    "modules/metaflow-service": {
        "name": "convoy", "vpc_id": "vpc-1", "vpc_cidr": "10.0.0.0/16", "subnet_ids": ["subnet-1", "subnet-2"],
        "client_security_group_ids": {"gang": "sg-1"}, "bucket": "bucket", "bucket_arn": "arn:aws:s3:::bucket",
        "keep_data": True,
    },
    "modules/launcher": {
        "name": "convoy", "region": "us-east-1", "vpc_id": "vpc-1", "subnet_id": "subnet-1", "policy_arns": {},
        "service_url": "http://metaflow.internal:8080", "ui_url": "http://metaflow.internal:3000",
    },
}  # fmt: skip
TAKEN: dict[str, dict[str, Any]] = {"aws-batch": STACK, "aws-eks": STACK, **MODULES}
"""Values that each folder takes."""


def reserved(count: float = 4, kind: str = "reservation", number: str = "cr-0123456789abcdef0") -> dict[str, Any]:
    """A value of `reservations`."""
    return {"p4d.24xlarge": {"id": number, "count": count, "kind": kind}}


BOTH: list[tuple[dict[str, Any], str]] = [
    ({"name": "Convoy_1"},
     "name = Convoy_1: must be 2 to 20 lower-case letters, digits and hyphens, and begin with a letter."),
    ({"availability_zone": "eu-west-1a"}, "availability_zone = eu-west-1a: must be a zone of region = us-east-1."),
    ({"max_nodes": 0}, "max_nodes = 0: must be a whole number, at least 1."),
    ({"max_nodes": 1.5}, "max_nodes = 1.5: must be a whole number, at least 1."),
]  # fmt: skip
NO_SPOT = "AWS Batch runs no multi-node jobs on spot instances; use on_demand or reserved, or the stack infra/aws-eks."
BATCH: list[tuple[dict[str, Any], str]] = [
    ({"market": "spot"},
     f"market = spot: {NO_SPOT}"),
    ({"market": "cheap"}, "market = cheap: must be on_demand or reserved."),
    ({"market": "reserved"}, "market = reserved: reservations must have an entry for each of instance_types."),
    ({"market": "reserved", "reservations": reserved(3)},
     "reservations: each count must be at least max_nodes = 4."),
    ({"market": "reserved", "reservations": reserved(number="r-1")},
     "reservations: each id must be that of a capacity reservation, cr- and 17 hexadecimal digits."),
    ({"market": "reserved", "reservations": reserved(kind="spot")},
     "reservations: each kind must be reservation or capacity_block."),
    ({"reservations": reserved()}, "reservations: needs market = reserved."),
    ({"schedule": {"expression": "every Monday", "config": "../../configs/bench/p4d.yaml"}},
     "schedule.expression = every Monday: must be cron(...) or rate(...)."),
    ({"schedule": {"expression": "rate(7 days)", "config": "nowhere.yaml"}},
     "schedule.config = nowhere.yaml: must be a YAML file."),
]  # fmt: skip
OPEN = "must be IPv4 networks, none larger than a /8, so that the API server is not open to everyone."
EKS: list[tuple[dict[str, Any], str]] = [
    *(({"kubernetes_version": version}, f"kubernetes_version = {version}: must be 1.36 or later.")
      for version in ("1.35", "1.4", "1.36.2")),
    *(({"api_cidrs": networks}, f"api_cidrs = {', '.join(networks)}: {OPEN}")
      for networks in (["203.0.113.0/24", "0.0.0.0/0"], ["0.0.0.0/1", "128.0.0.0/1"], ["::/0"], ["office"])),
    ({"instance_types": ["p5.48xlarge"], "reservations": reserved()},
     "reservations = p4d.24xlarge: each must be one of instance_types = p5.48xlarge."),
    ({"reservations": reserved(number="r-1")},
     "reservations: each id must be that of a capacity reservation, cr- and 17 hexadecimal digits, unlike r-1."),
    ({"reservations": reserved(0)}, "reservations: each count must be a whole number, at least 1, unlike 0."),
    ({"reservations": reserved(kind="spot")},
     "reservations: each kind must be reservation or capacity_block, unlike spot."),
]  # fmt: skip
BLOCK = "must be the IPv4 block of a VPC, which is /16 or smaller, and not open to the world."
ZONES = "must be subnets in at least two zones, which the database and the load balancer require."
REFUSED = [
    *(("aws-batch", *each) for each in BOTH + BATCH),
    *(("aws-eks", *each) for each in BOTH + EKS),
    ("modules/gpu-nodes", {"instance_types": ["p3.2xlarge"]},
     "instance_types = p3.2xlarge: must be types of the catalog, platform/convoy/catalog/instances.json."),
    ("modules/gpu-nodes", {"instance_types": ["p4d.24xlarge", "p4d.24xlarge"]},
     "instance_types: must name at least one type, and each type once."),
    ("modules/gpu-nodes", {"backend": "slurm"}, "backend = slurm: must be batch or kubernetes."),
    ("modules/cost-guard", {"usd_per_month": 0}, "budget_usd_per_month = 0: must be greater than 0."),
    ("modules/cost-guard", {"email": "ml"}, "budget_email = ml: must be an e-mail address."),
    ("modules/fsx", {"gib": 1000}, "fsx_gib = 1000: must be 1200 or a multiple of 2400."),
    ("modules/metaflow-service", {"name": "my--convoy"},
     "name = my--convoy: must not have two hyphens in a row, which RDS refuses in a name."),
    *(("modules/metaflow-service", {"vpc_cidr": network}, f"vpc_cidr = {network}: {BLOCK}")
      for network in ("0.0.0.0/0", "10.0.0.0/8", "10.0.0.0")),
    ("modules/metaflow-service", {"subnet_ids": ["subnet-1"]},
     f'subnet_ids = ["subnet-1"]: {ZONES}'),
    ("modules/metaflow-service", {"client_security_group_ids": {}},
     "client_security_group_ids = {}: must have at least one security group, or nobody can reach the service."),
    ("modules/launcher", {"service_url": "http://service.internal"},
     "service_url = http://service.internal: must be http://HOST:PORT."),
    ("modules/launcher", {"ui_url": "service.internal:3000"},
     "ui_url = service.internal:3000: must be http://HOST:PORT."),
]  # fmt: skip


def refusals(repository: Path, folder: str, given: dict[str, Any]) -> list[str]:
    """What a plan says against values of the variables of infra/`folder`, in a copy, which is of no use after that."""
    for file in (repository / "infra" / folder).glob("*.tf"):
        if file.name != "variables.tf":
            file.unlink()
    stack = TerraformFolder(repository / "infra" / folder, environment(None))
    values = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in (TAKEN[folder] | given).items()
    }
    words = [f"-var={name}={value}" for name, value in values.items()]
    printed = stack.run("plan", "-json", "-input=false", *words, check=False).stdout
    diagnostics = (json.loads(line).get("diagnostic") for line in printed.splitlines())
    return [each["detail"].partition("\n\nThis was checked by")[0] for each in diagnostics if each]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_repository(tmp_path_factory.mktemp("refusals"))


@pytest.mark.parametrize(("folder", "given", "message"), REFUSED, ids=[each[2][:60] for each in REFUSED])
def test_it_is_refused(folder: str, given: dict[str, Any], message: str, repository: Path) -> None:
    assert refusals(repository, folder, given) == [message]


@pytest.mark.parametrize("folder", TAKEN)
def test_what_is_right_is_taken(folder: str, repository: Path) -> None:
    assert refusals(repository, folder, {}) == []
