"""What a run on a cluster needs of the user's account, as far as this machine knows it: for the checklist of a dry run.

A run itself is not refused for it. An image may come from `@pypi` or `@conda`, and Metaflow refuses the rest.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from convoy.config.errors import PrerequisiteMissing
from convoy.config.run import RunConfig
from convoy.launch.checks.compatibility import Demand

NO_CREDENTIALS = "AWS credentials: none found"
"""How the text begins without which no bucket can be asked."""


def of_account(config: RunConfig) -> Iterator[Demand]:
    """Demands that raise PrerequisiteMissing, each for one thing."""
    if config.cluster.backend == "local":
        return
    yield _has_credentials
    yield partial(_is_set, "DATASTORE_SYSROOT_S3", "a folder for Metaflow's artifacts, such as s3://BUCKET/metaflow")
    yield from (_of_batch if config.cluster.backend == "batch" else _of_kubernetes)(config)


def _of_batch(config: RunConfig) -> Iterator[Demand]:
    yield partial(_is_set, "BATCH_JOB_QUEUE", "a job queue of CPU machines, for the steps that do not train")
    if config.cluster.iam_role is None:
        yield partial(_is_set, "ECS_S3_ACCESS_IAM_ROLE", "a job role that may use the buckets; or set cluster.iam_role")
    yield partial(_is_set, "SERVICE_URL", "the metadata service, through which Metaflow learns that all nodes ended")
    if config.cluster.image is None:
        yield partial(_is_set, "BATCH_CONTAINER_IMAGE", _IMAGE)


def _of_kubernetes(config: RunConfig) -> Iterator[Demand]:
    yield _has_kubeconfig
    if config.cluster.image is None:
        yield partial(_is_set, "KUBERNETES_CONTAINER_IMAGE", _IMAGE)


_IMAGE = "an image with torch, NCCL and the EFA plugin; or set cluster.image"


def _is_set(name: str, meaning: str) -> None:
    """As Metaflow reads its settings: from the environment, or from the profile that `metaflow configure` wrote."""
    from metaflow import metaflow_config

    if not getattr(metaflow_config, name):
        raise PrerequisiteMissing(f"METAFLOW_{name}: not set: {meaning}")


def _has_credentials() -> None:
    import botocore.session

    if botocore.session.Session().get_credentials() is None:
        raise PrerequisiteMissing(f"{NO_CREDENTIALS}; `aws configure` keeps them, or set AWS_PROFILE")


def _has_kubeconfig() -> None:
    """As the client of Kubernetes looks for it; within a pod the pod's service account does."""
    named = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    inside = "KUBERNETES_SERVICE_HOST" in os.environ
    if not inside and not any(Path(each).expanduser().is_file() for each in named.split(os.pathsep) if each):
        raise PrerequisiteMissing(f"KUBECONFIG: no file {named}; `aws eks update-kubeconfig --name CLUSTER` writes one")
