"""The Metaflow decorators that ask for the machines of a configuration. Pure: imports no metaflow."""

from functools import partial
from typing import Any, NamedTuple

from convoy.catalog.instances import Instance, instance
from convoy.config.cluster import ClusterConfig
from convoy.config.run import RunConfig
from convoy.launch.checks.compatibility import world
from convoy.launch.checks.memory import shared_memory_mib
from convoy.planner.workload import rented_type

MIB_IN_MB = 1024**2 / 1000**2
DO_NOT_DISRUPT = {"karpenter.sh/do-not-disrupt": "true"}
"""Metaflow gives its pods no grace period. A drain would end such a pod at once, on a spot notice two minutes before
its machine is taken; Karpenter drains no pod with this annotation."""
METRICS_PATH = "/metrics"
"""Of the endpoint with the gang's metrics, where `monitor.port` opens one."""
ORDINARY_CPU = 4
ORDINARY_MEMORY_MIB = 16_000


class Decorator(NamedTuple):
    """A Metaflow step decorator by name, with its arguments."""

    name: str
    arguments: dict[str, Any]


class StepDecorators(NamedTuple):
    """What a StepMutator adds to the steps of a flow."""

    gang: tuple[Decorator, ...]
    """For the `@parallel` step that trains."""
    ordinary: tuple[Decorator, ...]
    """For each of the other steps: a small CPU task where the mounts are the same."""


def step_decorators(config: RunConfig) -> StepDecorators:
    """The decorators of both kinds of steps. Expects a configuration that `checks.compatibility.check_run` lets pass.

    Locally there is nothing to ask for but retries and the secret with the target of notifications.
    """
    cluster, rented = config.cluster, rented_type(config)
    secret = _secret(config)
    everywhere = (*_retry(cluster), *secret)
    if rented is None:
        return StepDecorators(gang=everywhere, ordinary=secret)
    machine = instance(rented)
    shared = shared_memory_mib(config, world(config), machine)
    backend = _batch if cluster.backend == "batch" else partial(_kubernetes, metrics_port=config.monitor.port)
    compute, ordinary = backend(cluster, machine, shared)
    environment = _environment(cluster, machine)
    return StepDecorators(gang=(compute, environment, _timeout(cluster), *everywhere), ordinary=(ordinary, *secret))


def _batch(cluster: ClusterConfig, machine: Instance, shared_mib: int) -> tuple[Decorator, Decorator]:
    """Of the gang's step, and of the others."""
    gang = {
        "cpu": machine.vcpus,
        "gpu": machine.gpus,
        "memory": machine.task_memory_mib,
        "shared_memory": shared_mib,
        "queue": cluster.queue,
        # A single node has no peers to reach, and Metaflow would mount one adapter only.
        "efa": machine.efa_interfaces if cluster.nodes > 1 else 0,
    }
    # Not cluster.queue: a CPU task there would start, and wait on, one of its GPU machines.
    ordinary = {"cpu": ORDINARY_CPU, "memory": ORDINARY_MEMORY_MIB}
    common = {"image": cluster.image, "iam_role": cluster.iam_role, "host_volumes": list(cluster.host_volumes)}
    return Decorator("batch", _drop_unset(gang | common)), Decorator("batch", _drop_unset(ordinary | common))


def _kubernetes(
    cluster: ClusterConfig, machine: Instance, shared_mib: int, metrics_port: int | None
) -> tuple[Decorator, Decorator]:
    """Of the gang's step, and of the others."""
    gang = {
        # The kubelet and the daemons of a node need a little of it.
        "cpu": machine.vcpus - max(1, machine.vcpus // 16),
        "gpu": machine.gpus,
        "memory": int(machine.task_memory_mib * MIB_IN_MB),
        "shared_memory": shared_mib,
        "node_selector": _node_selector(cluster, machine),
        "extended_resources": _efa_resources(machine),
    }
    # Without cluster.node_selector, whose labels are those of the GPU machines.
    ordinary = {"cpu": ORDINARY_CPU, "memory": int(ORDINARY_MEMORY_MIB * MIB_IN_MB)}
    tolerations = [dict(toleration) for toleration in cluster.tolerations]
    common = {
        "image": cluster.image,
        "service_account": cluster.service_account,
        "namespace": cluster.namespace,
        "tolerations": tolerations,
        "persistent_volume_claims": dict(cluster.persistent_volume_claims),
        "annotations": DO_NOT_DISRUPT,
    }
    gpu_taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    on_gpus = common | {
        "tolerations": [gpu_taint, *tolerations],
        "annotations": DO_NOT_DISRUPT | _scrape_annotations(metrics_port),
    }
    return (
        Decorator("kubernetes", _drop_unset(gang | on_gpus)),
        Decorator("kubernetes", _drop_unset(ordinary | common)),
    )


def _scrape_annotations(port: int | None) -> dict[str, str]:
    """By which Prometheus finds a pod to scrape, as its Helm chart and most other set-ups configure it."""
    if port is None:
        return {}
    return {"prometheus.io/scrape": "true", "prometheus.io/port": str(port), "prometheus.io/path": METRICS_PATH}


def _node_selector(cluster: ClusterConfig, machine: Instance) -> dict[str, str]:
    """Well-known labels; the user's come last, so that a cluster with other labels can be described."""
    labels = {"node.kubernetes.io/instance-type": machine.name}
    # Managed node groups have a label of their own for it.
    if cluster.market == "spot" and "eks.amazonaws.com/capacityType" not in cluster.node_selector:
        labels["karpenter.sh/capacity-type"] = "spot"
    return labels | cluster.node_selector


def _efa_resources(machine: Instance) -> dict[str, str]:
    if machine.efa_interfaces == 0:
        return {}
    # No huge pages: Karpenter knows of none, and starts no machine for a pod that requests them.
    return {"vpc.amazonaws.com/efa": str(machine.efa_interfaces)}


def _environment(cluster: ClusterConfig, machine: Instance) -> Decorator:
    # NCCL_* and FI_* that tune stay unset: with libfabric >= 1.18 and aws-ofi-nccl >= 1.7 the plugin sets what the
    # platform needs, and values set by hand override its tuning.
    variables = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    if cluster.backend == "kubernetes" and machine.efa_interfaces:
        # The node has huge pages, and libfabric would map its buffers into them; the pod, which requested none, would
        # be killed by SIGBUS at the first access.
        variables["FI_EFA_USE_HUGE_PAGE"] = "0"
    return Decorator("environment", {"vars": variables})


def _timeout(cluster: ClusterConfig) -> Decorator:
    return Decorator("timeout", {"seconds": round(cluster.time_limit_hours * 3600)})


def _retry(cluster: ClusterConfig) -> tuple[Decorator, ...]:
    if cluster.retries == 0:
        return ()
    arguments = {"times": cluster.retries, "minutes_between_retries": cluster.minutes_between_retries}
    return (Decorator("retry", arguments),)


def _secret(config: RunConfig) -> tuple[Decorator, ...]:
    """Also for the ordinary steps: a benchmark compares its results in one of them."""
    wanted = config.notify.on and config.notify.secret
    return (Decorator("secrets", {"sources": [config.notify.secret]}),) if wanted else ()


def _drop_unset(arguments: dict[str, Any]) -> dict[str, Any]:
    """Without what is not set: Metaflow's own settings apply to an argument that is absent, not to an empty one."""
    return {key: value for key, value in arguments.items() if value not in (None, 0, [], {})}
