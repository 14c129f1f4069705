"""`convoy infra check` on Kubernetes: a cluster that has everything, and each single thing that may be wrong in one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from convoy.catalog.instances import instance
from convoy.config.errors import ConfigError
from convoy.config.loader import config_file
from convoy.infra import karpenter
from convoy.infra.findings import Finding
from convoy.infra.kubernetes import KUBERNETES_CHECKS
from tests.cli import assert_refused
from tests.infra.api_server import ApiServer, write_kubeconfig
from tests.infra.batch_account import ACCOUNT, REGION, TAGS, ZONE, AwsAccount, metadata_service

pytestmark = pytest.mark.infra

TYPE, NODES, NAMESPACE = "p5.48xlarge", 2, "metaflow"
"""Type and nodes of the preset `gpt-7b-p5`."""

POOLS, CLASSES = "/apis/karpenter.sh/v1/nodepools", "/apis/karpenter.k8s.aws/v1/ec2nodeclasses"
DAEMON_SETS, JOB_SETS = "/apis/apps/v1/daemonsets", "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"
ACCOUNTS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"

EKS = f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/convoy"


def node_pool(node_class: str, taints: list[dict[str, str]], **requirements: list[str]) -> dict[str, Any]:
    keys = {
        "type": "node.kubernetes.io/instance-type",
        "zone": karpenter.ZONE_LABEL,
        "capacity": karpenter.CAPACITY_TYPE_LABEL,
    }
    return {
        "spec": {
            "template": {
                "spec": {
                    "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": node_class},
                    "expireAfter": "Never",
                    "taints": taints,
                    "requirements": [
                        {"key": keys[name], "operator": "In", "values": values} for name, values in requirements.items()
                    ],
                }
            },
            "limits": {"nvidia.com/gpu": "16"},
            "disruption": {
                "consolidationPolicy": "WhenEmpty",
                "consolidateAfter": "5m",
                "budgets": [
                    {"nodes": "0", "reasons": ["Drifted", "Underutilized"]},
                    {"nodes": "100%", "reasons": ["Empty"]},
                ],
            },
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def daemon_set(image: str, memory: str, **pod: Any) -> dict[str, Any]:
    container = {"name": "it", "image": image, "resources": {"requests": {"memory": memory, "cpu": "100m"}}}
    return {"spec": {"template": {"spec": {"containers": [container], **pod}}}}


def grace(seconds: int) -> dict[str, Any]:
    """A policy."""
    patch = f'[JSONPatch{{op: "replace", path: "/spec/terminationGracePeriodSeconds", value: {seconds}}}]'
    return {"spec": {"mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}]}}


class Cluster(AwsAccount):
    """With what Kubernetes needs."""

    def __init__(self, service_url: str) -> None:
        super().__init__(service_url)
        self.api = ApiServer()
        gpu = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
        spot = {"key": "convoy/spot", "value": "true", "effect": "NoSchedule"}
        put = self.api.put
        put(POOLS, "cpu", node_pool("cpu", [], capacity=["on-demand"]))
        put(POOLS, "p5-on-demand", node_pool("p5", [gpu], type=[TYPE], zone=[ZONE], capacity=["on-demand"]))
        put(POOLS, "p5-spot", node_pool("p5", [gpu, spot], type=[TYPE], zone=[ZONE], capacity=["spot"]))
        tags = {tag["Key"]: tag["Value"] for tag in TAGS}
        spec = {
            "role": "convoy-node",
            "subnetSelectorTerms": [{"tags": tags}],
            "securityGroupSelectorTerms": [{"tags": tags}, {"tags": {"aws:eks:cluster-name": "convoy"}}],
            "metadataOptions": {"httpTokens": "required", "httpPutResponseHopLimit": 2},
            "placementGroupSelector": {"name": "convoy-gang"},
            "networkInterfaces": [
                {
                    "networkCardIndex": each.network_card_index,
                    "deviceIndex": each.device_index,
                    "interfaceType": each.interface_type,
                }
                for each in instance(TYPE).interfaces("kubernetes")
            ],
        }
        put(CLASSES, "p5", {"spec": spec, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        anywhere = {"tolerations": [{"operator": "Exists"}]}
        on_type = [
            {"matchExpressions": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [TYPE]}]}
        ]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": on_type}}
        on_pool = {
            "tolerations": [
                {"key": "nvidia.com/gpu", "operator": "Exists"},
                {"key": "convoy/spot", "operator": "Exists"},
            ],
            "affinity": {"nodeAffinity": required},
        }
        put(DAEMON_SETS, "aws-node", daemon_set("registry/amazon-k8s-cni:v1", "100Mi", **anywhere))
        put(DAEMON_SETS, "windows", daemon_set("x", "999Gi", nodeSelector={"kubernetes.io/os": "windows"}, **anywhere))
        put(DAEMON_SETS, "nvidia", daemon_set("nvcr.io/nvidia/k8s-device-plugin:v0.20.0", "64Mi", **on_pool))
        put(DAEMON_SETS, "efa", daemon_set("registry/eks/aws-efa-k8s-device-plugin:v0.5", "32Mi", **on_pool))
        put(JOB_SETS, "other", {})
        put(POLICIES, "convoy-grace", grace(110))
        put(BINDINGS, "convoy-grace", {"spec": {"policyName": "convoy-grace"}})
        put(ACCOUNTS, "convoy", {})
        put(CLAIMS, "fsx", {"status": {"phase": "Bound"}})

    @property
    def pool(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.collections[POOLS]["p5-spot"]["spec"]
        return found

    @property
    def machines(self) -> dict[str, Any]:
        found: dict[str, Any] = self.pool["template"]["spec"]
        return found

    @property
    def node_class(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.collections[CLASSES]["p5"]["spec"]
        return found

    def delete(self, collection: str, name: str) -> None:
        del self.api.collections[collection][name]

    def findings(self, preset: str = "gpt-7b-p5", **pool: Any) -> dict[str, Finding]:
        own = {
            "instance_type": TYPE, "market": "spot", "max_nodes": 4,
            "node_selector": {karpenter.CAPACITY_TYPE_LABEL: "spot", karpenter.ZONE_LABEL: ZONE},
            "tolerations": [{"key": "convoy/spot", "operator": "Exists", "effect": "NoSchedule"}],
        }  # fmt: skip
        stack = self.stack(
            backend="kubernetes", pools=[own | pool], namespace=NAMESPACE, service_account="convoy",
            persistent_volume_claims={"fsx": "/fsx"},
        )  # fmt: skip
        return self.check_preset(preset, stack)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with mock_aws(), metadata_service() as url:
        made = Cluster(url)
        with made.api.running() as server:
            write_kubeconfig(tmp_path / "kubeconfig", server, EKS)
            monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
            yield made


def daemon(cluster: Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.api.collections[DAEMON_SETS][name]["spec"]["template"]["spec"]
    return found


def require(cluster: Cluster, key: str, *values: str) -> None:
    """The pool allows other values of a label."""
    (requirement,) = [each for each in cluster.machines["requirements"] if each["key"] == key]
    requirement["values"] = list(values)


def not_ready(cluster: Cluster, collection: str, name: str) -> None:
    condition = {"type": "Ready", "status": "False", "message": "something is wrong"}
    cluster.api.collections[collection][name]["status"] = {"conditions": [condition]}


def request(cluster: Cluster, name: str, **own: str) -> None:
    daemon(cluster, name)["containers"][0]["resources"]["requests"].update(own)


def reserve(cluster: Cluster, **own: object) -> None:
    found = {"State": "active", "TotalInstanceCount": 2, "AvailabilityZone": ZONE, "InstanceType": TYPE}
    cluster.replies.reservations["cr-1"] = found | own
    cluster.node_class["capacityReservationSelectorTerms"] = [{"id": "cr-1"}]


BREAKAGES: dict[str, tuple[str, Callable[[Cluster], object]]] = {
    "no service account": ("service account", lambda c: c.delete(ACCOUNTS, "convoy")),
    "may not create jobsets": ("access", lambda c: c.api.refused.add("create jobsets")),
    "may not read logs": ("access", lambda c: c.api.refused.add("get pods/log")),
    "no JobSet": ("JobSet", lambda c: c.api.collections.pop(JOB_SETS)),
    "no Karpenter": ("node pool", lambda c: c.api.collections.pop(POOLS)),
    "no pool": ("node pool", lambda c: c.delete(POOLS, "p5-spot")),
    "pool of another type": (
        "node pool", lambda c: require(c, "node.kubernetes.io/instance-type", "p4d.24xlarge")),
    "pool on demand": ("node pool", lambda c: require(c, karpenter.CAPACITY_TYPE_LABEL, "on-demand")),
    "pool in another zone": ("node pool", lambda c: require(c, karpenter.ZONE_LABEL, "us-east-1b")),
    "pool not ready": ("node pool", lambda c: not_ready(c, POOLS, "p5-spot")),
    "pool that Karpenter has not looked at": ("node pool", lambda c: c.api.collections[POOLS]["p5-spot"].pop("status")),
    "pool of small machines": ("node pool", lambda c: c.machines["requirements"].append(
        {"key": "karpenter.k8s.aws/instance-cpu", "operator": "Lt", "values": ["100"]})),
    "no pool for other steps": ("ordinary steps", lambda c: c.delete(POOLS, "cpu")),
    "other steps are not tolerated": ("ordinary steps", lambda c: c.api.collections[POOLS]["cpu"]["spec"]["template"][
        "spec"]["taints"].append({"key": "team", "value": "other", "effect": "NoSchedule"})),
    "no node class": ("node class", lambda c: c.delete(CLASSES, "p5")),
    "node class not ready": ("node class", lambda c: not_ready(c, CLASSES, "p5")),
    "one GPU too few": ("limits", lambda c: c.pool["limits"].update({"nvidia.com/gpu": "15"})),
    "CPU limit": ("limits", lambda c: c.pool["limits"].update({"cpu": "383"})),
    "taint not tolerated": ("taints", lambda c: c.machines["taints"].append(
        {"key": "team", "value": "other", "effect": "NoExecute"}) or [
            each["tolerations"].append({"operator": "Exists"})
            for each in (daemon(c, "nvidia"), daemon(c, "efa"))]),
    "expiry by default": ("expiry", lambda c: c.machines.pop("expireAfter")),
    "expiry": ("expiry", lambda c: c.machines.update(expireAfter="720h")),
    "consolidation of used machines": (
        "disruption", lambda c: c.pool["disruption"].update(consolidationPolicy="WhenEmptyOrUnderutilized")),
    "drift": ("disruption", lambda c: c.pool["disruption"]["budgets"][0]["reasons"].remove("Drifted")),
    "drift by a schedule": ("disruption", lambda c: c.pool["disruption"]["budgets"][0].update(
        schedule="@daily", duration="1h")),
    "grace period of machines": ("disruption", lambda c: c.machines.update(terminationGracePeriod="8m")),
    "subnet not found": ("zone", lambda c: c.node_class.update(subnetSelectorTerms=[{"id": "subnet-1"}])),
    "type not offered": ("zone", lambda c: setattr(c.replies, "offered", False)),
    "31 adapters": ("interfaces", lambda c: c.node_class["networkInterfaces"].pop()),
    "primary efa-only": ("interfaces", lambda c: c.node_class["networkInterfaces"][0].update(interfaceType="efa-only")),
    "no placement group": ("placement group", lambda c: c.node_class.pop("placementGroupSelector")),
    "no self egress": ("security group", lambda c: c.ec2.revoke_security_group_egress(
        GroupId=c.group, IpPermissions=c.self_rule)),
    "group not found": ("security group", lambda c: c.node_class["securityGroupSelectorTerms"].pop(0)),
    "hop limit by default": (
        "instance metadata", lambda c: c.node_class["metadataOptions"].pop("httpPutResponseHopLimit")),
    "metadata service of machines disabled": (
        "instance metadata", lambda c: c.node_class["metadataOptions"].update(httpEndpoint="disabled")),
    "IMDSv1": ("instance metadata", lambda c: c.node_class["metadataOptions"].update(httpTokens="optional")),
    "reservation expired": ("reservation", lambda c: reserve(c, State="expired")),
    "no NVIDIA plugin": ("NVIDIA device plugin", lambda c: c.delete(DAEMON_SETS, "nvidia")),
    "EFA plugin on labelled machines": (
        "EFA device plugin", lambda c: daemon(c, "efa").update(nodeSelector={"efa-enabled": "yes"})),
    "NVIDIA plugin on labelled machines": ("NVIDIA device plugin", lambda c: daemon(c, "nvidia")["affinity"][
        "nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"].update(nodeSelectorTerms=[
            {"matchExpressions": [{"key": "nvidia.com/gpu.present", "operator": "Exists"}]}])),
    "EFA plugin on other machines": ("EFA device plugin", lambda c: daemon(c, "efa")["tolerations"].pop()),
    "memory of DaemonSets": ("pod size", lambda c: request(c, "aws-node", memory="500Gi")),
    "CPUs of DaemonSets": ("pod size", lambda c: request(c, "aws-node", cpu="12")),
    "claim not bound": ("volume claims", lambda c: c.api.put(CLAIMS, "fsx", {"status": {"phase": "Pending"}})),
    "no claim": ("volume claims", lambda c: c.delete(CLAIMS, "fsx")),
    "old Kubernetes": ("grace policy", lambda c: (
        c.api.collections.pop(POLICIES), c.api.collections.pop(BINDINGS))),
    "other policy": ("grace policy", lambda c: c.api.put(POLICIES, "convoy-grace", {"spec": {"mutations": []}})),
    "policy that gives no time": ("grace policy", lambda c: c.api.put(POLICIES, "convoy-grace", grace(0))),
    "policy bound elsewhere": ("grace policy", lambda c: c.api.collections[BINDINGS]["convoy-grace"]["spec"].update(
        matchResources={"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}})),
    "policy not bound": ("grace policy", lambda c: c.delete(BINDINGS, "convoy-grace")),
    "spot quota 0": ("quota", lambda c: c.replies.quotas.update({"All P5 Spot Instance Requests": 0.0})),
}  # fmt: skip
"""The check that reports it, and how it is made."""


def test_a_cluster_that_has_everything_is_ok(cluster: Cluster) -> None:
    findings = cluster.findings()
    assert [each.line() for each in findings.values() if each.status != "ok"] == []
    assert list(findings) == [check.name for check in KUBERNETES_CHECKS]


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_single_breakage_changes_its_finding_alone(cluster: Cluster, name: str) -> None:
    check, break_it = BREAKAGES[name]
    break_it(cluster)
    wrong = [finding for finding in cluster.findings().values() if finding.status != "ok"]
    assert [(each.name, each.status) for each in wrong] == [(check, "missing")]
    assert all(each.seen and each.wanted and each.fix for each in wrong)


def test_a_pool_without_limits_is_a_warning(cluster: Cluster) -> None:
    cluster.pool.pop("limits")
    assert [each.name for each in cluster.findings().values() if each.status == "warning"] == ["limits"]


def test_karpenter_chooses_interfaces_where_none_is_named(cluster: Cluster) -> None:
    cluster.node_class.pop("networkInterfaces")
    assert cluster.findings()["interfaces"].status == "ok"


def test_karpenter_passes_over_a_pool_that_it_cannot_use(cluster: Cluster) -> None:
    gpu, team = ({"key": key, "value": "true", "effect": "NoSchedule"} for key in ("nvidia.com/gpu", "team"))
    cluster.api.put(POOLS, "research", node_pool("p5", [gpu, team], type=[TYPE], zone=[ZONE], capacity=["spot"]))
    cluster.api.collections[POOLS]["research"]["spec"]["weight"] = 50
    assert [each.line() for each in cluster.findings().values() if each.status != "ok"] == []


def test_a_pool_that_may_buy_spot_is_none_for_machines_on_demand(cluster: Cluster) -> None:
    labels = {"node.kubernetes.io/instance-type": TYPE, karpenter.ZONE_LABEL: ZONE}
    pool = {"metadata": {"name": "any"}} | node_pool("p5", [], type=[TYPE])
    assert karpenter.starts_for(pool, labels)
    assert karpenter.capacity_types(pool) == {"reserved", "spot", "on-demand"}
    requirements = pool["spec"]["template"]["spec"]["requirements"]
    requirements.append({"key": karpenter.CAPACITY_TYPE_LABEL, "operator": "NotIn", "values": ["spot"]})
    assert karpenter.capacity_types(pool) == {"reserved", "on-demand"}


def test_a_thing_that_the_user_may_not_read_is_a_finding(cluster: Cluster) -> None:
    cluster.api.forbidden.add(POLICIES)
    finding = cluster.findings()["grace policy"]
    assert (finding.status, finding.seen) == ("missing", "the API server answers 403 Forbidden")


def test_a_reserved_pool_may_end_its_machines(cluster: Cluster, tmp_path: Path) -> None:
    preset = tmp_path / "reserved.yaml"
    preset.write_text(config_file("gpt-7b-p5", "train").read_text().replace("market: spot", "market: on_demand"))
    gpu = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
    cluster.api.put(POOLS, "reserved", node_pool("p5", [gpu], type=[TYPE], zone=[ZONE], capacity=["reserved"]))
    cluster.api.collections[POOLS]["reserved"]["spec"]["template"]["spec"]["terminationGracePeriod"] = "8m"
    cluster.api.collections[POOLS]["reserved"]["spec"]["limits"] = {"nvidia.com/gpu": "32"}
    reserve(cluster, TotalInstanceCount=4)
    for each in ("nvidia", "efa"):
        daemon(cluster, each)["tolerations"] = [{"operator": "Exists"}]
    cluster.node_class.pop("placementGroupSelector")
    selector = {karpenter.CAPACITY_TYPE_LABEL: "reserved"}
    on_demand = {"market": "reservation", "node_selector": selector, "tolerations": []}
    findings = cluster.findings(str(preset), **on_demand)
    assert [each.line() for each in findings.values() if each.status != "ok"] == []
    assert findings["reservation"].seen == f"cr-1: active, 4 {TYPE} in {ZONE}"


@pytest.mark.parametrize(
    ("cluster_name", "line"),
    [
        (
            EKS.replace(REGION, "eu-west-1"),
            "KUBECONFIG: a cluster in eu-west-1; must be in us-east-1, as cluster.region",
        ),
        (EKS.replace(ACCOUNT, "2" * 12), f"AWS credentials: belong to account {ACCOUNT}; must be {'2' * 12}; "),
    ],
)
def test_a_cluster_of_another_region_or_account_is_refused(
    cluster: Cluster, tmp_path: Path, cluster_name: str, line: str
) -> None:
    write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:9", cluster_name)
    with pytest.raises(ConfigError) as error:
        cluster.findings()
    assert str(error.value).startswith(line)


def test_no_kubeconfig_and_a_server_that_is_down_are_one_line(cluster: Cluster, tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:9", EKS)
    with pytest.raises(ConfigError, match=r"^KUBECONFIG: no answer of the API server: [^\n]*$"):
        cluster.findings()
    for broken in (b"a: [", b"\xff\xfe", b"word"):
        (tmp_path / "kubeconfig").write_bytes(broken)
        with pytest.raises(ConfigError, match=r"^KUBECONFIG: [^\n]*; `aws eks update-kubeconfig"):
            cluster.findings()
    (tmp_path / "kubeconfig").unlink()
    with pytest.raises(
        ConfigError, match=r"^KUBECONFIG: [^\n]*; `aws eks update-kubeconfig --name CLUSTER` writes one$"
    ):
        cluster.findings()


def test_without_the_extra_the_command_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = "cluster.backend = kubernetes: needs the extra: pip install 'metaflow-convoy[kubernetes]'"
    assert_refused(line, "infra", "check", "gpt-7b-p5")
