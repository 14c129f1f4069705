"""Pods as Metaflow's own code makes them of a configuration, without starting any."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from metaflow.plugins.kubernetes.kubernetes import Kubernetes
from metaflow.plugins.kubernetes.kubernetes_decorator import KubernetesDecorator

from convoy.config.loader import resolve
from convoy.config.run import RunConfig
from convoy.launch.decorators import Decorator, step_decorators

Manifest = dict[str, Any]

TASK = {
    "flow_name": "TrainFlow",
    "run_id": "7",
    "step_name": "train",
    "task_id": "3",
    "attempt": "0",
    "user": "tester",
    "code_package_metadata": "",
    "code_package_sha": "sha",
    "code_package_url": "s3://bucket/code",
    "code_package_ds": "s3",
    "docker_image_pull_policy": None,
    "step_cli": "python flow.py step train",
    "run_time_limit": 3600,
    "persistent_volume_claims": {},
    "secrets": [],
}
RENAMED = {"image": "docker_image", "image_pull_policy": "docker_image_pull_policy"}


def config(name: str, market: str = "spot") -> RunConfig:
    """A gang of two machines of this type."""
    cluster = {
        "backend": "kubernetes",
        "nodes": 2,
        "instance_type": name,
        "market": market,
        "image": "registry/convoy:1",
    }
    return resolve({"root": "s3://bucket/convoy"}, {"cluster": cluster, "train": {"global_batch": 512}})


def gang_jobset(config: RunConfig, patch: pytest.MonkeyPatch) -> Manifest:
    """The JobSet of the step that trains."""
    (compute,) = (each for each in step_decorators(config).gang if each.name == "kubernetes")
    environment = dict(step_decorators(config).gang)["environment"]["vars"]
    arguments = _arguments(compute, "create_jobset") | {"num_parallel": config.cluster.nodes, "env": environment}
    manifest: Manifest = _backend(patch).create_jobset(**arguments).dump()
    return manifest


def ordinary_job(config: RunConfig, patch: pytest.MonkeyPatch) -> Manifest:
    """The Job of each of the other steps."""
    (compute,) = step_decorators(config).ordinary
    arguments = _arguments(compute, "create_job_object") | {"env": {}, "name_pattern": "t-1-"}
    made = _backend(patch).create_job_object(**arguments).create()
    job: Manifest = made._client.get().ApiClient().sanitize_for_serialization(made._job)
    return job


def pods_of(manifest: Manifest) -> list[Manifest]:
    """One template for each kind of pod: metadata and spec."""
    if manifest["kind"] == "JobSet":
        return [job["template"]["spec"]["template"] for job in manifest["spec"]["replicatedJobs"]]
    return [manifest["spec"]["template"]]


def _backend(patch: pytest.MonkeyPatch) -> Any:
    # There is no cluster to connect to.
    patch.setattr("kubernetes.config.load_kube_config", lambda: None)
    patch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    environment = SimpleNamespace(
        get_package_commands=lambda *_, **__: [], bootstrap_commands=lambda *_: [], get_environment_info=dict
    )
    return Kubernetes(SimpleNamespace(TYPE="s3"), SimpleNamespace(), environment)


def _arguments(compute: Decorator, method: str) -> dict[str, Any]:
    """What Metaflow's decorator passes on, by the names of this method."""
    made = KubernetesDecorator(attributes=compute.arguments, statically_defined=True)
    made.init()
    made.step_init(None, None, "train", [], None, SimpleNamespace(TYPE="s3"), None)
    given = TASK | {RENAMED.get(name, name): value for name, value in made.attributes.items() if value is not None}
    accepted = inspect.signature(getattr(Kubernetes, method)).parameters
    return {name: value for name, value in given.items() if name in accepted}
