"""A configuration becomes the decorators that Metaflow itself accepts."""

from types import SimpleNamespace
from typing import Any

import pytest
from metaflow.plugins.aws.batch.batch_decorator import BatchDecorator
from metaflow.plugins.environment_decorator import EnvironmentDecorator
from metaflow.plugins.kubernetes.kubernetes_decorator import KubernetesDecorator
from metaflow.plugins.retry_decorator import RetryDecorator
from metaflow.plugins.timeout_decorator import TimeoutDecorator

from convoy.catalog.instances import instance, instance_names
from convoy.config.loader import resolve
from convoy.config.monitor import MonitorConfig
from convoy.config.run import RunConfig
from convoy.launch.decorators import Decorator, step_decorators

METAFLOW = {
    "batch": BatchDecorator,
    "kubernetes": KubernetesDecorator,
    "environment": EnvironmentDecorator,
    "retry": RetryDecorator,
    "timeout": TimeoutDecorator,
}


def config(backend: str, **cluster: Any) -> RunConfig:
    base = {"backend": backend, "nodes": 4, "instance_type": "p4d.24xlarge"}
    return resolve({"root": "s3://bucket/convoy"}, {"cluster": base | cluster, "train": {"global_batch": 512}})


def gang(backend: str, **cluster: Any) -> dict[str, dict[str, Any]]:
    return dict(step_decorators(config(backend, **cluster)).gang)


def ordinary(backend: str, **cluster: Any) -> dict[str, Any]:
    (only,) = step_decorators(config(backend, **cluster)).ordinary
    assert only.name == backend
    return only.arguments


def initialised(decorator: Decorator) -> Any:
    """Metaflow's own decorator after its checks of names, types and values."""
    made = METAFLOW[decorator.name](attributes=decorator.arguments, statically_defined=True)
    made.init()
    store = SimpleNamespace(TYPE="s3")
    if decorator.name in ("batch", "kubernetes"):
        made.step_init(None, None, "train", [], None, store, None)
    return made


def test_locally_nothing_but_retries_is_added() -> None:
    assert step_decorators(RunConfig()) == ((), ())
    added = step_decorators(resolve({}, {"cluster": {"retries": 3, "minutes_between_retries": 0}}))
    assert added == ((Decorator("retry", {"times": 3, "minutes_between_retries": 0}),), ())


def test_a_gang_has_retries_a_time_limit_and_leaves_the_network_to_its_plugin() -> None:
    found = gang("kubernetes", retries=2, time_limit_hours=1.5)
    assert found["retry"] == {"times": 2, "minutes_between_retries": 2}
    assert "retry" not in gang("kubernetes", retries=0)
    alone = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert gang("batch")["environment"]["vars"] == alone
    assert gang("kubernetes", instance_type="g5.xlarge")["environment"]["vars"] == alone
    # Its pods request no huge pages, so libfabric must not use those of the node.
    assert found["environment"]["vars"] == alone | {"FI_EFA_USE_HUGE_PAGE": "0"}
    assert initialised(Decorator("timeout", found["timeout"])).secs == 5400


EVERY_OPTION: dict[str, dict[str, Any]] = {
    "kubernetes": {
        "market": "spot",
        "service_account": "trainer",
        "namespace": "training",
        "node_selector": {"pool": "gpu"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "persistent_volume_claims": {"fsx": "/fsx"},
        "shared_memory_mib": 1024,
    },
    "batch": {"queue": "q", "iam_role": "arn:role", "host_volumes": ["/fsx"]},
}


@pytest.mark.parametrize("backend", EVERY_OPTION)
@pytest.mark.parametrize("name", instance_names())
def test_metaflow_accepts_every_decorator_with_every_option(backend: str, name: str) -> None:
    options = EVERY_OPTION[backend] | {"image": "registry/convoy:1", "retries": 4}
    added = step_decorators(config(backend, instance_type=name, **options))
    for decorator in (*added.gang, *added.ordinary):
        initialised(decorator)


@pytest.mark.parametrize(("name", "efa"), [("p4d.24xlarge", 4), ("p5.48xlarge", 32), ("p5en.48xlarge", 16)])
def test_batch_asks_for_the_whole_machine(name: str, efa: int) -> None:
    asked, facts = gang("batch", instance_type=name)["batch"], instance(name)
    assert asked["gpu"] == 8
    assert asked["cpu"] == facts.vcpus
    assert asked["efa"] == efa
    assert 0.8 < asked["memory"] / (facts.memory_gib * 1024) < 0.9
    assert asked["shared_memory"] == facts.memory_gib * 1024 // 8


@pytest.mark.parametrize("name", instance_names())
def test_kubernetes_leaves_room_for_the_system(name: str) -> None:
    asked, facts = gang("kubernetes", instance_type=name)["kubernetes"], instance(name)
    nominal_mb = facts.memory_gib * 1024**3 / 1e6
    assert 0.74 < asked["memory"] / nominal_mb <= 0.85
    assert asked["memory"] * 1e6 / 2**20 <= facts.karpenter_memory_mib - 512
    assert facts.vcpus * 0.75 <= asked["cpu"] < facts.vcpus


INSTANCE = {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
MANAGED = {"eks.amazonaws.com/capacityType": "SPOT"}


@pytest.mark.parametrize(
    ("cluster", "selector"),
    [
        ({}, INSTANCE),
        ({"market": "spot", "node_selector": {"p": "a"}}, INSTANCE | {"karpenter.sh/capacity-type": "spot", "p": "a"}),
        ({"market": "spot", "node_selector": MANAGED}, INSTANCE | MANAGED),
    ],
)
def test_pods_go_to_nodes_of_the_instance_type_and_market(cluster: dict[str, Any], selector: dict[str, str]) -> None:
    assert gang("kubernetes", **cluster)["kubernetes"]["node_selector"] == selector


def test_adapters_are_asked_for_where_there_are_any_and_peers_to_reach() -> None:
    assert gang("kubernetes", instance_type="p5.48xlarge")["kubernetes"]["extended_resources"] == {
        "vpc.amazonaws.com/efa": "32",
    }
    assert "extended_resources" not in gang("kubernetes", instance_type="g5.xlarge")["kubernetes"]
    assert "efa" not in gang("batch", instance_type="g5.xlarge")["batch"]
    assert "efa" not in gang("batch", nodes=1)["batch"]


def test_karpenter_is_told_to_drain_none_of_its_pods() -> None:
    kept = {"karpenter.sh/do-not-disrupt": "true"}
    assert gang("kubernetes")["kubernetes"]["annotations"] == ordinary("kubernetes")["annotations"] == kept
    assert "annotations" not in gang("batch")["batch"]


def test_pods_of_a_gang_with_an_endpoint_are_annotated_for_prometheus() -> None:
    watched = config("kubernetes").model_copy(update={"monitor": MonitorConfig(port=9400)})
    asked = step_decorators(watched)
    kept = {"karpenter.sh/do-not-disrupt": "true"}
    assert dict(asked.gang)["kubernetes"]["annotations"] == kept | {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "9400",
        "prometheus.io/path": "/metrics",
    }
    assert asked.ordinary[0].arguments["annotations"] == kept


def test_the_taint_of_gpu_nodes_is_tolerated_besides_the_users() -> None:
    spot = {"key": "spot", "operator": "Exists"}
    tolerations = gang("kubernetes", tolerations=[spot])["kubernetes"]["tolerations"]
    assert [one["key"] for one in tolerations] == ["nvidia.com/gpu", "spot"]
    assert ordinary("kubernetes", tolerations=[spot])["tolerations"] == [spot]


@pytest.mark.parametrize(
    ("backend", "mount"),
    [("batch", {"host_volumes": ["/fsx"]}), ("kubernetes", {"persistent_volume_claims": {"fsx": "/fsx"}})],
)
def test_ordinary_steps_are_small_and_see_the_same_volumes(backend: str, mount: dict[str, Any]) -> None:
    asked = ordinary(backend, image="registry/convoy:1", **mount)
    assert asked["cpu"] == 4
    assert 15_000 < asked["memory"] < 18_000
    assert asked["image"] == "registry/convoy:1"
    assert asked.items() >= mount.items()
    assert not {"gpu", "efa", "extended_resources", "node_selector"} & asked.keys()
    # Nor does it go to the queue of GPU machines.
    assert gang("batch", queue="p4d")["batch"]["queue"] == "p4d"
    assert "queue" not in ordinary("batch", queue="p4d")


@pytest.mark.parametrize("backend", ["batch", "kubernetes"])
def test_what_is_not_set_is_left_to_metaflow(backend: str) -> None:
    for decorator in (*step_decorators(config(backend)).gang, *step_decorators(config(backend)).ordinary):
        assert None not in decorator.arguments.values()
        assert not {"image", "queue", "iam_role", "namespace", "service_account"} & decorator.arguments.keys()
