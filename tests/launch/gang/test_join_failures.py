"""A node that ended before it joined is told to node 0, which waits for it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from convoy.gang.agent import Gang
from convoy.job.generations import FormationRefusedError, refuse_formation
from convoy.launch.gang import step
from convoy.launch.gang.step import Hindrance, ended_sibling
from convoy.storage.posix import PosixStore
from tests.gang.tasks import a_node, a_task, wait_for


@pytest.fixture(autouse=True)
def _no_child_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the process that runs the tests may have left unreaped."""
    before = {pid for pid, _ in step._ended_children()}
    found = step._ended_children

    def since() -> Iterator[tuple[int, int]]:
        return ((pid, code) for pid, code in found() if pid not in before)

    monkeypatch.setattr(step, "_ended_children", since)


@pytest.mark.parametrize(("code", "seen"), [("import sys; sys.exit(3)", True), ("pass", False)])
def test_a_sibling_that_ended_with_an_error_is_seen_until_it_is_reaped(code: str, seen: bool) -> None:
    child = subprocess.Popen([sys.executable, "-c", code])
    wait_for("its end", lambda: (Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]) == "Z")
    told = ended_sibling()
    assert (told is not None) == seen
    assert told is None or f"(pid {child.pid}) ended before it had joined" in told
    child.wait()
    assert ended_sibling() is None


def test_a_process_that_leads_a_session_is_no_node() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(3)"], start_new_session=True)
    wait_for("its end", lambda: (Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]) == "Z")
    assert ended_sibling() is None
    child.wait()


def test_a_node_without_a_gang_to_come_does_not_keep_node_0_waiting(tmp_path: Path) -> None:
    task, node = a_task(str(tmp_path)), a_node(nproc=1, nodes=2)
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit('no module named metaflow')"])
    began = time.monotonic()
    with pytest.raises(FormationRefusedError, match="the process of another node"):
        Gang(task, node, Hindrance(PosixStore(tmp_path / "job"), node)).__enter__()
    assert time.monotonic() - began < 30
    child.wait()


def test_what_another_node_left_in_the_store_is_told(tmp_path: Path) -> None:
    store, node = PosixStore(tmp_path), replace(a_node(nproc=1, nodes=2), shares_host=False)
    asked = Hindrance(store, node)
    assert asked() is None
    refuse_formation(store, node.formation, "node 1: nproc_per_node = 4: this machine has 2 GPUs")
    assert str(wait_for("the word of the other node", asked)).startswith("node 1: nproc_per_node = 4")
    assert Hindrance(store, replace(node, index=1))() is None
