"""The multi-node flows compile for Argo Workflows, offline."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.flows.places import FLOW, REPOSITORY, Place

P4D = REPOSITORY / "configs" / "train" / "gpt-7b-p4d.yaml"
IMAGE = "registry.example/convoy:1"


@pytest.fixture
def bucket(s3_uri: str) -> str:
    return s3_uri.removeprefix("s3://").partition("/")[0]


@pytest.fixture
def workflow(bucket: str, tmp_path: Path) -> dict[str, Any]:
    overrides = (
        f"root=s3://{bucket}/jobs data.corpus.path=s3://{bucket}/corpus cluster.image={IMAGE} "
        "cluster.service_account=trainer 'cluster.tolerations=[{key: spot, operator: Exists}]'"
    )
    return rendered(tmp_path, bucket, FLOW, "--config", "run", P4D, "--config-value", "set", overrides)


@pytest.fixture
def benchmark(bucket: str, tmp_path: Path) -> dict[str, Any]:
    overrides = (
        f"schedule='0 6 * * 1' suites=[throughput,scaling] models=[gpt-7b] run.train.global_batch=64 "
        f"run.root=s3://{bucket}/jobs 'run.data.corpus={{kind: files, path: s3://{bucket}/corpus}}' "
        f"run.cluster.backend=kubernetes run.cluster.nodes=4 run.cluster.instance_type=p4d.24xlarge "
        f"run.cluster.image={IMAGE}"
    )
    return rendered(tmp_path, bucket, FLOW.with_name("benchmark_flow.py"), "--config-value", "set", overrides)


def rendered(folder: Path, bucket: str, *command: str | Path) -> dict[str, Any]:
    """What would be sent to Argo Workflows."""
    place = Place(
        folder, {"METAFLOW_DEFAULT_DATASTORE": "s3", "METAFLOW_DATASTORE_SYSROOT_S3": f"s3://{bucket}/metaflow"}
    )
    done = place.run(sys.executable, *command, "argo-workflows", "create", "--only-json")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return found


def template(workflow: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [t for t in workflow["spec"]["templates"] if t["name"] == name]
    return dict(found)


def test_the_flow_becomes_a_jobset_of_one_control_and_three_workers_and_small_tasks(workflow: dict[str, Any]) -> None:
    for name in ("prepare-data", "join"):
        container = template(workflow, name)["container"]
        assert container["image"] == IMAGE
        assert "nvidia.com/gpu" not in container["resources"]["requests"]
    manifest = template(workflow, "train")["resource"]["manifest"]
    assert "replicas: {{=asInt(inputs.parameters.workerCount)}}" in manifest
    jobset = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "1", manifest))
    assert jobset["kind"] == "JobSet"
    jobs = {job["name"]: job for job in jobset["spec"]["replicatedJobs"]}
    assert set(jobs) == {"control", "worker"}
    for job in jobs.values():
        pod = job["template"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == IMAGE
        assert "step train" in container["command"][-1], "the step with @convoy_gang"
        assert {"name": "UBF_CONTEXT", "value": f"ubf_{'control' if job['name'] == 'control' else 'task'}"}.items() <= (
            {k: v for e in container["env"] if e["name"] == "UBF_CONTEXT" for k, v in e.items()}.items()
        )
        limits = container["resources"]["limits"]
        assert limits["nvidia.com/gpu"] == "8"
        assert limits["vpc.amazonaws.com/efa"] == "4"
        assert pod["serviceAccountName"] == "trainer"
        assert {"key": "spot", "operator": "Exists"} in [
            {k: v for k, v in t.items() if v is not None} for t in pod["tolerations"]
        ]
        assert pod["nodeSelector"]["node.kubernetes.io/instance-type"] == "p4d.24xlarge"


def test_a_benchmark_has_its_schedule_and_machines_for_each_gang(benchmark: dict[str, Any]) -> None:
    assert json.loads(benchmark["metadata"]["annotations"]["metaflow/cron"]) == {"schedule": "0 6 * * 1", "tz": ""}
    manifest = template(benchmark, "measure")["resource"]["manifest"]
    assert "step measure" in manifest
    assert "vpc.amazonaws.com/efa: '4'" in manifest
    jobset = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "1", manifest))
    assert {job["name"] for job in jobset["spec"]["replicatedJobs"]} == {"control", "worker"}
    assert "nvidia.com/gpu" not in template(benchmark, "report")["container"]["resources"]["requests"]
