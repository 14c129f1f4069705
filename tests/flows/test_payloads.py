"""What Metaflow sends to AWS Batch and to Kubernetes for a step with @convoy_gang: run by Metaflow itself, against a
server that keeps the requests."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from convoy.catalog.instances import instance
from tests.flows.places import REPOSITORY, Place
from tests.flows.recorder import Recorder

FLOW = REPOSITORY / "tests" / "flows" / "gang_flow.py"
IMAGE = "registry.example/convoy:1"
NODES = 4
P4D = instance("p4d.24xlarge")


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as server:
        yield server


def launch(recorder: Recorder, s3_uri: str, folder: Path, **cluster: Any) -> str:
    """Run the flow with these machines until the gang is to start; what it printed."""
    bucket = s3_uri.removeprefix("s3://").partition("/")[0]
    place = Place(
        folder,
        {
            "METAFLOW_DEFAULT_DATASTORE": "s3",
            "METAFLOW_DATASTORE_SYSROOT_S3": f"s3://{bucket}/metaflow",
            "AWS_ENDPOINT_URL_BATCH": recorder.url,
            "KUBECONFIG": str(recorder.kubeconfig(folder / "kubeconfig")),
            "GANG_NPROC": "8",
        },
    )
    machines = {
        "root": f"s3://{bucket}/jobs",
        "cluster": {"nodes": NODES, "instance_type": P4D.name, "image": IMAGE} | cluster,
    }
    done = place.run(
        sys.executable, FLOW, "--config-value", "machines", json.dumps(machines), "run", "--nodes", str(NODES)
    )
    assert done.returncode != 0, "there is nothing that would run it"
    assert "nothing is started here" in done.stdout + done.stderr
    return done.stdout + done.stderr


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value") for entry in container.get("environment", container.get("env", []))}


@pytest.mark.slow
def test_batch_gets_a_multi_node_job_whose_nodes_are_one_control_task_and_three_others(
    recorder: Recorder, s3_uri: str, tmp_path: Path
) -> None:
    launch(recorder, s3_uri, tmp_path, backend="batch", queue="queue", iam_role="arn:aws:iam::1:role/job")

    definition, job = recorder.only("/registerjobdefinition"), recorder.only("/submitjob")
    assert (definition["type"], definition["nodeProperties"]["numNodes"]) == ("multinode", NODES)
    assert definition["nodeProperties"]["mainNode"] == 0
    for group in definition["nodeProperties"]["nodeRangeProperties"]:
        container = group["container"]
        assert container["image"] == IMAGE
        assert container["linuxParameters"]["sharedMemorySize"] == P4D.memory_gib * 1024 // 8
        assert len(container["linuxParameters"]["devices"]) == P4D.efa_interfaces
    first, others = job["nodeOverrides"]["nodePropertyOverrides"]
    assert (first["targetNodes"], others["targetNodes"]) == ("0:0", f"1:{NODES - 1}")
    for nodes, index in ((first, "0"), (others, "$AWS_BATCH_JOB_NODE_INDEX")):
        container = nodes["containerOverrides"]
        command = container["command"][-1]
        assert f"--split-index {index}" in command
        assert "gang_flow.py" in command
        wanted = {entry["type"]: entry["value"] for entry in container["resourceRequirements"]}
        assert wanted == {"GPU": "8", "VCPU": str(P4D.vcpus), "MEMORY": str(P4D.task_memory_mib)}
        assert variables(container)["METAFLOW_RUNTIME_ENVIRONMENT"] == "aws-batch"
        assert variables(container)["MF_PARALLEL_CONTROL_TASK_ID"] == "2"
    assert "--ubf-context ubf_control" in first["containerOverrides"]["command"][-1]
    assert "--ubf-context ubf_task" in others["containerOverrides"]["command"][-1]
    assert job["timeout"] == {"attemptDurationSeconds": 120 * 3600}


@pytest.mark.slow
def test_kubernetes_gets_a_jobset_of_one_control_pod_and_three_workers(
    recorder: Recorder, s3_uri: str, tmp_path: Path
) -> None:
    launch(recorder, s3_uri, tmp_path, backend="kubernetes", market="spot", namespace="training")

    jobset = recorder.only("/namespaces/training/jobsets")
    assert jobset["kind"] == "JobSet"
    jobs = {job["name"]: job for job in jobset["spec"]["replicatedJobs"]}
    assert {name: job["replicas"] for name, job in jobs.items()} == {"control": 1, "worker": NODES - 1}
    for name, job in jobs.items():
        assert job["template"]["spec"]["backoffLimit"] == 0
        pod = job["template"]["spec"]["template"]["spec"]
        assert job["template"]["spec"]["template"]["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
        assert pod["restartPolicy"] == "Never"
        assert pod["nodeSelector"]["karpenter.sh/capacity-type"] == "spot"
        (container,) = pod["containers"]
        command, first = container["command"][-1], name == "control"
        index, task = ("0", "2)") if first else ("`expr", "2-worker-$MF_WORKER_REPLICA_INDEX)")
        assert f"--ubf-context $UBF_CONTEXT --split-index {index}" in command
        assert f"--task-id {task}" in command
        assert container["image"] == IMAGE
        limits = container["resources"]["limits"]
        assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"]) == ("8", "4")
        found = variables(container)
        assert found["METAFLOW_RUNTIME_ENVIRONMENT"] == "kubernetes"
        assert found["UBF_CONTEXT"] == ("ubf_control" if first else "ubf_task")
        assert (found["MF_WORLD_SIZE"], found["MF_PARALLEL_CONTROL_TASK_ID"]) == (str(NODES), "2")
        sizes = [volume["emptyDir"].get("sizeLimit") for volume in pod["volumes"] if "emptyDir" in volume]
        assert f"{P4D.memory_gib * 1024 // 8}Mi" in sizes


def test_machines_without_room_for_what_is_staged_are_refused_before_the_run_exists(tmp_path: Path) -> None:
    place = Place(tmp_path, {"METAFLOW_DEFAULT_DATASTORE": "s3", "METAFLOW_DATASTORE_SYSROOT_S3": "s3://bucket/x"})
    cluster = {"backend": "kubernetes", "nodes": 2, "instance_type": P4D.name, "shared_memory_mib": 1024}
    machines = {"root": "s3://bucket/jobs", "model": "llama-7b", "cluster": cluster}
    done = place.run(sys.executable, FLOW, "--config-value", "machines", json.dumps(machines), "run")
    assert done.returncode == 2
    assert "convoy: cluster.shared_memory_mib = 1024: must be at least " in done.stderr
    assert "Workflow starting" not in done.stdout
