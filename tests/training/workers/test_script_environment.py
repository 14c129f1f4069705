"""What a script's environment says of its place, and which GPUs it sees."""

from pathlib import Path

import pytest

from convoy.config.run import RunConfig
from convoy.gang.task import Assignment, Node, Script
from convoy.training.workers.script import script_environment, visible_devices


def environment(node: Node, local_rank: int, devices: list[str]) -> dict[str, str]:
    assignment = Assignment(
        config=RunConfig(),
        job="job",
        job_uri="/root/job",
        root="/root",
        data_id="",
        fingerprint="script",
        generation=3,
        parent=None,
        place=node.place_of(local_rank, 1),
        master_host="10.0.0.7",
        master_port=4711,
        reason_path="/reason",
        script=Script(entrypoint="/train.py"),
    )
    return script_environment(assignment, devices)


def a_node(index: int, nodes: int, nproc: int, shared: bool) -> Node:
    return Node(index, nodes, nproc, "10.0.0.7", "F/1", "f", 0, shared)


@pytest.mark.parametrize("shared", [True, False])
def test_the_variables_are_those_of_torchrun(shared: bool) -> None:
    found = environment(a_node(1, 2, 4, shared), 3, [])
    assert found.items() >= {
        "RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
        "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "4711", "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }.items()  # fmt: skip
    assert "CUDA_VISIBLE_DEVICES" not in found


def test_nodes_on_one_host_have_gpus_of_their_own() -> None:
    """Scripts take the LOCAL_RANK-th of those that they see."""
    devices = ["4", "5", "6", "7"]
    seen = [environment(a_node(i, 2, 2, True), r, devices)["CUDA_VISIBLE_DEVICES"] for i in (0, 1) for r in (0, 1)]
    assert seen == ["4,5", "4,5", "6,7", "6,7"]


def test_a_node_with_a_host_of_its_own_sees_all_of_its_gpus() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in environment(a_node(1, 2, 2, False), 0, ["0", "1"])


@pytest.mark.parametrize(
    ("named", "seen"),
    [("0,1", ["0", "1"]), ("GPU-abc, 3", ["GPU-abc", "3"]), ("", []), ("-1", []), (None, ["0", "2", "11"])],
)
def test_devices_are_those_named_or_those_there(named: str | None, seen: list[str], tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia2", "nvidia11", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_devices({} if named is None else {"CUDA_VISIBLE_DEVICES": named}, tmp_path) == seen
