"""Data that node 0 prepares for its gang."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from convoy.gang.task import Node
from convoy.job.generations import FormationRefusedError, refuse_formation
from convoy.launch.shared_data import prepared_by_first
from convoy.storage.posix import PosixStore
from tests.gang.tasks import a_node

DATA = {"id": "abc", "fingerprint": "def"}


def never() -> dict[str, str]:
    raise AssertionError("only node 0 prepares")


def node(index: int, attempt: int = 0) -> Node:
    return a_node(index=index, nodes=2, attempt=attempt)


def test_the_other_nodes_wait_for_what_node_0_prepares(tmp_path: Path) -> None:
    store, found = PosixStore(tmp_path), list[object]()
    waiting = threading.Thread(target=lambda: found.append(prepared_by_first(store, node(1), never)))
    waiting.start()
    assert prepared_by_first(store, node(0), lambda: DATA) == DATA
    waiting.join(20)
    assert found == [DATA]


def test_another_attempt_waits_for_its_own(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    prepared_by_first(store, node(0), lambda: DATA)
    with pytest.raises(TimeoutError, match="node 0 prepared no data within 0 s"):
        prepared_by_first(store, node(1, attempt=1), never, seconds=0.1)


def test_why_node_0_prepared_none_is_told_on_all(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    refuse_formation(store, node(1).formation, "data.corpus.path = /x: does not exist")
    with pytest.raises(FormationRefusedError, match=r"data\.corpus\.path = /x: does not exist"):
        prepared_by_first(store, node(1), never)


def test_a_node_whose_first_is_gone_does_not_wait(tmp_path: Path) -> None:
    """Locally node 0's process starts the others, which outlive it."""
    waiting = (
        "from convoy.storage.posix import PosixStore; from convoy.launch.shared_data import prepared_by_first;"
        "from tests.launch.test_shared_data import never, node; import sys; print('waits', flush=True);"
        f"prepared_by_first(PosixStore({str(tmp_path)!r}), node(1), never)"
    )
    first = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {waiting!r}], stdout=subprocess.PIPE);"
        "p.stdout.readline(); print(p.pid, flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", first], capture_output=True, timeout=60)
    assert b"node 0 ended before it had prepared the data" in done.stderr  # held open until the other has ended too
