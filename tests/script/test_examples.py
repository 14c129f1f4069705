"""The scripts of `flows/examples/` under a real gang: as their libraries write them, and with Convoy's lines."""

import json
import os
import runpy
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from convoy.gang.task import Task
from convoy.job.events.registry import FailureDetected, ScriptResumed
from convoy.job.lineage import counted_commits, read_history
from convoy.storage import open_store
from tests.flows.places import REPOSITORY
from tests.gang import tasks
from tests.gang.tasks import Agent, agents, events_of, running, wait_for

pytestmark = [pytest.mark.alone, pytest.mark.slow]

EXAMPLES = REPOSITORY / "flows" / "examples"
RECORDED = Path(__file__).with_name("recorded.py")
KILLED = 1
"""The rank that is killed."""


@dataclass(frozen=True)
class Library:
    """A library's example. output: the argument that says where its last weights go. weights: these, below the folder
    that it is given."""

    name: str
    output: tuple[str, str]
    weights: str
    store: str
    """Of its checkpoints, below the job's."""
    batches_per_step: int = 1

    def __str__(self) -> str:
        return self.name


LIBRARIES = (
    Library("trainer", ("--output_dir", "{}"), "model.safetensors", "trainer"),
    Library("accelerate", ("--output", "{}/last.pt"), "last.pt", "loop", batches_per_step=2),
    Library("deepspeed", ("--output", "{}/last.pt"), "last.pt", "loop"),
    Library("lightning", ("--output", "{}"), "autoencoder.pt", "lightning"),
    Library("ddp", ("--output", "{}/last.pt"), "last.pt", "loop"),
)


@dataclass(frozen=True)
class Example:
    """One run of an example by a gang."""

    library: Library
    folder: Path
    task: Task

    def batches(self, rank: int, generation: int) -> list[list[int]]:
        """The samples of each batch of a rank in one generation."""
        file = self.folder / f"{generation}-{rank}.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]  # else it is being written

    def weights(self) -> dict[str, torch.Tensor]:
        file = self.folder / self.library.weights
        return load_file(file) if file.suffix == ".safetensors" else torch.load(file)

    def newest_commit(self) -> int:
        """The step of the newest verified checkpoint; 0: there is none."""
        store = open_store(f"{self.task.root}/job/script/{self.library.store}")
        return max((ref.step for ref in counted_commits(read_history(store))), default=0)

    def kill_when(self, gang: list[Agent], batches: int) -> None:
        """Kill one rank, once it has come to so many batches."""
        wait_for(f"{batches} batches", lambda: len(self.batches(KILLED, 1)) >= batches)
        os.kill(gang[KILLED].worker(KILLED), signal.SIGKILL)


def an_example(library: Library, folder: Path, *, lines: bool, pause: float = 0.0) -> Example:
    """lines: with Convoy's. pause: seconds at each batch."""
    folder.mkdir()
    script = EXAMPLES / f"train_{library.name}{'' if lines else '_plain'}.py"
    args = [*(word.format(folder) for word in library.output), *flow_arguments().get(f"train_{library.name}", [])]
    return Example(library, folder, running(folder, str(RECORDED), script, folder, pause, *args))


def flow_arguments() -> dict[str, list[object]]:
    """What the examples' flow gives to scripts that need more."""
    found: dict[str, list[object]] = runpy.run_path(str(EXAMPLES / "scripts_flow.py"))["ARGUMENTS"]
    return found


def finish(example: Example, gang: list[Agent]) -> None:
    outcomes = [agent.outcome() for agent in gang]
    assert {outcome.outcome for outcome in outcomes} == {"finished"}, outcomes


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the libraries take many seconds to import."""
    monkeypatch.setattr(tasks, "DEADLINE_SECONDS", 100.0)


@pytest.mark.timeout(900)
@pytest.mark.sampled(len(LIBRARIES))
@pytest.mark.parametrize("library", LIBRARIES, ids=str)
def test_an_unchanged_script_survives_the_kill_of_a_worker(library: Library, tmp_path: Path) -> None:
    example = an_example(library, tmp_path / "plain", lines=False, pause=0.05)
    with agents(example.task, 2) as gang:
        example.kill_when(gang, batches=8)
        finish(example, gang)
    (failed,) = [event for event in events_of(example.task) if isinstance(event, FailureDetected)]
    assert (failed.worker, failed.signal, failed.action) == (KILLED, "SIGKILL", "restart")
    assert [len(example.batches(rank, generation=2)) for rank in (0, 1)] == [60, 60]
    assert example.weights()


@pytest.mark.timeout(900)
@pytest.mark.sampled(len(LIBRARIES))
@pytest.mark.parametrize("library", LIBRARIES, ids=str)
def test_a_script_with_convoy_s_lines_resumes_exactly(library: Library, tmp_path: Path) -> None:
    """The library alone gives the truth: the same weights bit for bit, by the same batches in the same order."""
    alone = an_example(library, tmp_path / "alone", lines=False)
    with agents(alone.task, 2) as gang:
        finish(alone, gang)
    example = an_example(library, tmp_path / "killed", lines=True, pause=0.1)
    with agents(example.task, 2) as gang:
        wait_for("a checkpoint", example.newest_commit)
        example.kill_when(gang, len(example.batches(KILLED, 1)) + 3)
        finish(example, gang)
    (resumed,) = [event for event in events_of(example.task) if isinstance(event, ScriptResumed)]
    assert 0 < resumed.step * library.batches_per_step < len(example.batches(KILLED, 1))
    for rank in (0, 1):
        committed = example.batches(rank, 1)[: resumed.step * library.batches_per_step]
        assert committed + example.batches(rank, 2) == alone.batches(rank, 1)
        assert len(alone.batches(rank, 1)) == 60
    expected, found = alone.weights(), example.weights()
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
