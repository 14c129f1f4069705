"""A node without Metaflow: what it tells when it has ended, and that nothing of it outlives who started it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from convoy.gang.local_node import LocalNode, NodeResult, NodeSpec, node_on_this_host, start_node
from convoy.gang.workers.processes import environment_of, parents_by_pid
from tests.gang.tasks import a_script, wait_for

PATIENCE_SECONDS = 60.0
MARK = "CONVOY_TEST_LOCAL_NODE"


def a_spec(folder: Path, program: str) -> NodeSpec:
    """One worker that runs this program."""
    return NodeSpec(task=a_script(folder, program, cluster={"nodes": 1}), node=node_on_this_host(0, 1, 1, "Test/1"))


def ended(node: LocalNode) -> NodeResult:
    node.process.wait(PATIENCE_SECONDS)
    return node.result()


def marked(mark: str) -> set[int]:
    """Processes that have this in their environment and have not ended."""
    return {pid for pid in parents_by_pid() if f"{MARK}={mark}".encode() in environment_of(pid)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("program", "outcome", "message"),
    [("print('done')", "finished", ""), ("raise ValueError('no such thing')", "failed", "ValueError: no such thing")],
)
def test_a_node_tells_how_its_gang_ended(tmp_path: Path, program: str, outcome: str, message: str) -> None:
    told = ended(start_node(a_spec(tmp_path, program), tmp_path / "0"))
    assert told.outcome is not None, told.error
    assert told.outcome.outcome == outcome
    assert message in told.outcome.message
    assert not told.was_killed


def test_a_node_that_was_killed_is_told_to_be_gone(tmp_path: Path) -> None:
    node = start_node(a_spec(tmp_path, "import time; time.sleep(600)"), tmp_path / "0")
    assert node.result().error == "it did not end"
    os.kill(node.process.pid, signal.SIGKILL)
    told = ended(node)
    assert (told.was_killed, told.outcome) == (True, None)
    assert told.error.startswith("its agent was killed by SIGKILL")


def test_nothing_outlives_the_process_that_started_a_node(tmp_path: Path) -> None:
    mark = str(tmp_path)
    runs = f"import time; from pathlib import Path; Path({str(tmp_path / 'runs')!r}).touch(); time.sleep(600)"
    spec = a_spec(tmp_path, runs)
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    starter = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from convoy.gang.local_node import NodeSpec, start_node\n"
        "folder = Path(sys.argv[1])\n"
        "start_node(NodeSpec.model_validate_json((folder / 'spec.json').read_text()), folder / '0')\n"
        "time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", starter, str(tmp_path)], env={**os.environ, MARK: mark})
    wait_for("the worker", (tmp_path / "runs").exists)
    assert len(marked(mark)) >= 4  # it, the agent, what workers are forked from, a worker
    process.kill()
    process.wait()
    wait_for("the end of all", lambda: not marked(mark))
