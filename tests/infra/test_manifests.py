"""The manifests of infra/aws-eks, rendered by Terraform: valid, and right for the pods of Convoy."""

import json
import re
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
import yaml
from moto import mock_aws

from convoy.catalog.instances import instance, instance_names
from tests.infra.karpenter import CPU_TYPES, MIB, Manifest, Node, allocatable, daemon_requests, obstacles
from tests.infra.pods import config, gang_jobset, ordinary_job, pods_of
from tests.infra.schemas import documents, evaluate, problems
from tests.infra.terraform import REPOSITORY, copy_repository, initialised

pytestmark = pytest.mark.infra

GPU_TYPES = [name for name in instance_names() if instance(name).gpus]
ADDONS = {"cpu": 0.2, "memory": 240.0 * MIB, "pods": 4.0}
"""What the DaemonSets of EKS's add-ons request on each node: vpc-cni 50m, kube-proxy 100m, and the FSx driver's three
containers 30m and 120 MiB; the Pod Identity agent nothing. Rounded up."""


@pytest.fixture(scope="module")
def manifests(aws_url: str, tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """As a plan knows them, for all types with GPUs, each on demand, on spot and reserved."""
    stack = initialised(copy_repository(tmp_path_factory.mktemp("planned")), "aws-eks", aws_url)
    reservations = {
        name: {
            "id": f"cr-{number:017x}",
            "count": 4,
            "kind": "capacity_block" if name.startswith("p") else "reservation",
        }
        for number, name in enumerate(GPU_TYPES)
    }
    variables = {
        "region": "us-east-1",
        "availability_zone": "us-east-1a",
        "instance_types": json.dumps(GPU_TYPES),
        "max_nodes": "4",
        "budget_usd_per_month": "50000",
        "budget_email": "ml@example.com",
        "reservations": json.dumps(reservations),
        "api_cidrs": '["203.0.113.0/24"]',
    }
    words = [f"-var={name}={value}" for name, value in variables.items()]
    stack.run("plan", "-input=false", "-no-color", "-out=plan", *words)
    planned = json.loads(stack.run("show", "-json", "plan").stdout)["planned_values"]["outputs"]
    return documents(planned["manifests"]["value"])


@pytest.fixture(scope="module")
def described() -> Iterator[dict[str, Manifest]]:
    credentials = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    with mock_aws():
        client = boto3.client("ec2", region_name="us-east-1", **credentials)
        found = client.describe_instance_types(InstanceTypes=[*GPU_TYPES, *CPU_TYPES])["InstanceTypes"]
        yield {str(each["InstanceType"]): dict(each) for each in found}


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] == kind}


def test_they_are_valid(manifests: list[Manifest]) -> None:
    assert [problem for manifest in manifests for problem in problems(manifest)] == []


def test_a_mistake_would_be_seen(manifests: list[Manifest]) -> None:
    """Of a type, of a name, and against a rule."""
    pool = next(iter(of_kind(manifests, "NodePool").values()))
    broken = json.loads(json.dumps(pool))
    broken["spec"]["template"]["spec"]["expireAfter"] = "soon"
    assert "expireAfter" in problems(broken)[0]
    broken = json.loads(json.dumps(pool))
    broken["spec"]["template"]["spec"]["expiresAfter"] = "Never"
    assert "expiresAfter" in problems(broken)[0]
    node_class = of_kind(manifests, "EC2NodeClass")["p4d-24xlarge"]
    broken = json.loads(json.dumps(node_class))
    broken["spec"]["networkInterfaces"][0]["interfaceType"] = "efa-only"
    assert problems(broken)


def nodes(manifests: list[Manifest], described: dict[str, Manifest], name: str) -> dict[str, Node]:
    """What each pool would start for this type, by the pool's capacity type."""
    found = {}
    daemons = [each for each in manifests if each["kind"] == "DaemonSet"]
    for pool in of_kind(manifests, "NodePool").values():
        spec = pool["spec"]["template"]["spec"]
        wanted = {each["key"]: each["values"] for each in spec["requirements"] if each["operator"] == "In"}
        types = wanted.get("node.kubernetes.io/instance-type", CPU_TYPES)
        if name not in types:
            continue
        labels = {key: values[0] for key, values in wanted.items()} | {"node.kubernetes.io/instance-type": name}
        node = Node(labels, allocatable(described[name]), tuple(spec.get("taints", ())))
        requested = daemon_requests(daemons, node)
        total = {key: requested.get(key, 0.0) + ADDONS.get(key, 0.0) for key in requested.keys() | ADDONS.keys()}
        found[labels["karpenter.sh/capacity-type"]] = Node(labels, node.allocatable, node.taints, total)
    return found


def connected(name: str, market: str, zone: str = "us-east-1a") -> Any:
    """The configuration as `convoy infra connect` writes it."""
    base = config(name, "on_demand" if market == "reserved" else market)
    capacity = {"on_demand": "on-demand"}.get(market, market)
    spot = ({"key": "convoy/spot", "operator": "Exists", "effect": "NoSchedule"},)
    cluster = base.cluster.model_copy(
        update={
            "node_selector": {"karpenter.sh/capacity-type": capacity, "topology.kubernetes.io/zone": zone},
            "tolerations": spot if market == "spot" else (),
        }
    )
    return base.model_copy(update={"cluster": cluster})


@pytest.mark.parametrize("market", ["on_demand", "spot", "reserved"])
@pytest.mark.parametrize("name", GPU_TYPES)
def test_the_pool_of_each_type_and_market_starts_a_machine_for_a_gang(
    name: str, market: str, manifests: list[Manifest], described: dict[str, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    capacity = {"on_demand": "on-demand"}.get(market, market)
    there = nodes(manifests, described, name)
    assert there.keys() == {"on-demand", "spot", "reserved"}
    for pod in pods_of(gang_jobset(connected(name, market), monkeypatch)):
        assert [each for each, node in there.items() if not obstacles(pod, node)] == [capacity]


def test_other_steps_start_cpu_machines_only(
    manifests: list[Manifest], described: dict[str, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    (pod,) = pods_of(ordinary_job(connected("p4d.24xlarge", "spot"), monkeypatch))
    for name in CPU_TYPES:
        assert obstacles(pod, nodes(manifests, described, name)["on-demand"]) == []
    for name in GPU_TYPES:
        assert all(obstacles(pod, node) for node in nodes(manifests, described, name).values())


@pytest.mark.parametrize("name", GPU_TYPES)
def test_a_class_has_the_interfaces_of_its_type(name: str, manifests: list[Manifest]) -> None:
    found = of_kind(manifests, "EC2NodeClass")[name.replace(".", "-")]["spec"].get("networkInterfaces", [])
    layout = [(each["networkCardIndex"], each["deviceIndex"], each["interfaceType"]) for each in found]
    assert layout == [tuple(each) for each in instance(name).interfaces("kubernetes")]


def test_machines_that_run_a_gang_are_left_alone(manifests: list[Manifest]) -> None:
    for name, pool in of_kind(manifests, "NodePool").items():
        spec = pool["spec"]["template"]["spec"]
        assert spec["expireAfter"] == "Never"
        assert pool["spec"]["disruption"]["consolidationPolicy"] == "WhenEmpty"
        used = [each for each in pool["spec"]["disruption"]["budgets"] if "Drifted" in each.get("reasons", ["Drifted"])]
        assert [each["nodes"] for each in used] == ["0"]
        # With it, drift takes pods that are not to be disrupted.
        assert ("terminationGracePeriod" in spec) == name.endswith("-reserved")


def test_pods_hear_of_a_spot_notice_and_have_no_rights_of_their_machine(manifests: list[Manifest]) -> None:
    for node_class in of_kind(manifests, "EC2NodeClass").values():
        options = node_class["spec"]["metadataOptions"]
        assert (options["httpPutResponseHopLimit"], options["httpTokens"]) == (2, "required")


def test_pins_are_the_same_everywhere() -> None:
    folder = REPOSITORY / "infra" / "kubernetes"
    releases = json.loads((folder / "versions.json").read_text())["releases"]
    controllers = (folder / "controllers" / "kustomization.yaml").read_text()
    for release in releases.values():
        assert release["commit"] in controllers
    kustomization = yaml.safe_load(controllers)
    assert {f"v{each['newTag'].lstrip('v')}" for each in kustomization["images"]} == {releases["jobset"]["version"]}


METAFLOW = {"app.kubernetes.io/part-of": "metaflow"}


class TestGrace:
    """The admission policy that gives Metaflow's pods time to save."""

    def admitted(self, pod: Manifest, manifests: list[Manifest], namespace: str = "convoy") -> Manifest:
        """The pod as the API server would store it."""
        (policy,) = of_kind(manifests, "MutatingAdmissionPolicy").values()
        rules = policy["spec"]["matchConstraints"]
        pod = json.loads(json.dumps(pod))
        labels = rules["objectSelector"]["matchLabels"]
        namespaces = rules["namespaceSelector"]["matchLabels"]
        if namespaces != {"kubernetes.io/metadata.name": namespace}:
            return pod
        if not labels.items() <= pod["metadata"].get("labels", {}).items():
            return pod
        if not all(evaluate(each["expression"], object=pod) for each in policy["spec"].get("matchConditions", ())):
            return pod
        for mutation in policy["spec"]["mutations"]:
            for patch in json_patches(mutation["jsonPatch"]["expression"], pod):
                apply(pod, patch)
        return pod

    def test_a_pod_of_metaflow_gets_time_to_save(
        self, manifests: list[Manifest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for manifest in (gang_jobset(connected("p4d.24xlarge", "spot"), monkeypatch),
                         ordinary_job(connected("p4d.24xlarge", "spot"), monkeypatch)):  # fmt: skip
            for pod in pods_of(manifest):
                assert pod["spec"]["terminationGracePeriodSeconds"] == 0
                once = self.admitted(pod, manifests)
                assert once["spec"]["terminationGracePeriodSeconds"] == 110
                assert self.admitted(once, manifests) == once
                pod["spec"]["terminationGracePeriodSeconds"] = 110
                assert once == pod

    @pytest.mark.parametrize(
        ("labels", "grace", "namespace"),
        [({}, 0, "convoy"), (METAFLOW, 30, "convoy"), (METAFLOW, 0, "default"), (METAFLOW, None, "convoy")],
    )
    def test_other_pods_are_left_as_they_are(
        self, labels: dict[str, str], grace: int | None, namespace: str, manifests: list[Manifest]
    ) -> None:
        pod: Manifest = {"metadata": {"labels": labels}, "spec": {"containers": []}}
        if grace is not None:
            pod["spec"]["terminationGracePeriodSeconds"] = grace
        assert self.admitted(pod, manifests, namespace) == pod


def json_patches(expression: str, pod: Manifest) -> list[dict[str, Any]]:
    """The patches that a CEL expression makes of a pod. cel-python knows objects of a type as maps."""
    as_maps = re.sub(r"\b(op|path|value):", r'"\1":', expression.replace("JSONPatch{", "{"))
    patches: list[dict[str, Any]] = json.loads(json.dumps(evaluate(as_maps, object=pod)))
    return patches


def apply(pod: Manifest, patch: dict[str, Any]) -> None:
    *parents, last = patch["path"].lstrip("/").split("/")
    for name in parents:
        pod = pod[name.replace("~1", "/").replace("~0", "~")]
    assert patch["op"] in ("add", "replace")
    pod[last.replace("~1", "/").replace("~0", "~")] = patch["value"]
