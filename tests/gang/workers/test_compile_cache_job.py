"""A job that compiles: its next attempt, by another agent, finds all of it and compiles nothing. Nothing is left behind
on the machine."""

import io
import re
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from convoy.gang.agent import Gang
from convoy.gang.task import Task
from convoy.gang.workers import compile_cache
from convoy.job.events.types import StepDone
from convoy.job.lineage import newest_commit, read_history
from convoy.job.record import job_store
from convoy.storage import Store
from tests.gang.tasks import a_node, a_task, events_of
from tests.training.job import GPT

PATIENCE_SECONDS = 240.0
"""The compiler takes seconds of a core for each of several graphs."""

COMPILER = """#!/bin/sh
echo "$@" >> {log}
exec g++ "$@"
"""


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What the C++ compiler was asked to build so far, by the source's name without its suffix."""
    log, compiler = tmp_path / "builds", tmp_path / "counting-g++"
    compiler.write_text(COMPILER.format(log=log))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    for name in (*compile_cache.FOLDERS, *compile_cache.SETTINGS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(compile_cache, "LOOK_SECONDS", 0.5)
    return lambda: re.findall(r"/compiled/(inductor/\w+/\w+)\S*\.cpp", log.read_text()) if log.exists() else []


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.timeout(900)
def test_a_later_attempt_compiles_nothing(
    builds: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    train = {"threads_per_rank": 1, "compile": True, "steps": 100_000}
    # Evaluated in batches of the size that it trains in: otherwise the order of the two decides which sizes are fixed.
    sections = {"model": GPT | {"n_layers": 1}, "evaluation": {"sequences": 8}}
    first = a_task(str(tmp_path / "root"), train=train, **sections)
    with Gang(first, a_node(nproc=1)) as gang:
        until(gang, lambda: any(isinstance(e, StepDone) and e.step >= 5 for e in events_of(first)))
        store = job_store(first.root, first.job)
        until(gang, lambda: kept(store) >= set(builds()))
        assert gang.workers is not None
        gang.workers.order("save_and_end")
        until(gang, lambda: reached(first))

    before = len(builds())
    assert before
    second = a_task(first.root, train=train | {"steps": reached(first) + 5}, **sections)
    with Gang(second, a_node(nproc=1, attempt=1)) as gang:
        ended = gang.wait(PATIENCE_SECONDS)
    assert ended is not None
    assert ended.outcome == "finished"
    assert builds()[before:] == []
    assert list(temporary.iterdir()) == []


def until(gang: Gang, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        ended = gang.wait(0.1)
        assert ended is None or ended.outcome == "stopped", ended
        assert time.monotonic() < deadline


def kept(store: Store) -> set[str]:
    """The libraries in the copy that the root has, by the source's name without its suffix."""
    for name in store.sizes("compiled/"):
        with tarfile.open(fileobj=io.BytesIO(store.read(name))) as tar:
            return {member.name.partition(".")[0] for member in tar if member.name.endswith(".so")}
    return set()


def reached(task: Task) -> int:
    """Steps of the newest commit; 0: there is none."""
    newest = newest_commit(read_history(job_store(task.root, task.job)))
    return newest.step if newest else 0
