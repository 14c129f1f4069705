"""Jobs that `convoy run` brings to their end, on machines whose metadata service is a stand-in."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from convoy.drills.testbed.imds import ImdsStandIn
from convoy.job.events.log import EventReader, read_events
from convoy.job.events.registry import Event, GenerationEnded, StepDone
from convoy.job.record import job_store
from convoy.storage import Store
from tests.flows.places import CONVOY, FLOW, SMOKE, Place, wait_for
from tests.flows.runs import NO_EXPORT

STEPS = 500
"""More than are done in the moments from a first step to its notice, six times over."""
SAVES = "checkpoint.every_steps=100 evaluation.every_steps=250"
OVERRIDES = f"train.steps={STEPS} {SAVES} report.card_refresh_seconds=30 notices.poll_seconds=0.2 {NO_EXPORT}"

PATIENCE_SECONDS = 300.0
"""For a run to start and train, on a machine that has other things to do."""


@dataclass(frozen=True)
class Completed:
    """A job that has ended, and what each `convoy run` of it printed."""

    place: Place
    job: str
    commands: "list[subprocess.CompletedProcess[str]]"

    @property
    def store(self) -> Store:
        return job_store(str(self.place.root), self.job)

    def told(self) -> list[str]:
        """The lines of `convoy run` itself, without those of the flow's preflight and how the job stands at last."""
        lines = [line for done in self.commands for line in done.stderr.splitlines()]
        own = [line.removeprefix("convoy: ") for line in lines if line.startswith("convoy: ")]
        ours = [line for line in own if not line.startswith("notices of this machine's end")]
        return [line for line in ours if "The newest checkpoint holds step" not in line]


@contextmanager
def running(place: Place, job: str, overrides: str, *options: str) -> "Iterator[subprocess.Popen[str]]":
    """`convoy run` of a job with the smoke configuration, without pauses."""
    process = place.start(*command(job, overrides, *options))
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)


def command(job: str, overrides: str, *options: str) -> list[str]:
    configured = ["--config", "run", str(SMOKE), "--config-value", "set", overrides]
    return [str(CONVOY), "run", str(FLOW), "--job", job, "--pause", "0", *options, "--", *configured]


def ended(process: "subprocess.Popen[str]") -> "subprocess.CompletedProcess[str]":
    stdout, stderr = process.communicate(timeout=2 * PATIENCE_SECONDS)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def preempt(imds: ImdsStandIn, store: Store, generation: int) -> None:
    """Give both nodes notice once that generation trains; take it back when the attempt has ended.

    Not in its first step: a node that has heard of none yet has nothing to save, and ends at once."""
    await_events(store, generation, StepDone, count=5)
    imds.announce_interruption()
    await_events(store, generation, GenerationEnded, count=2)
    imds.withdraw_notices()


def await_events(store: Store, generation: int, kind: type[Event], count: int = 1) -> None:
    """Until the log holds so many of the kind. Reads each event once, as a whole log takes a core that trains."""
    reader, seen = EventReader(store), 0

    def there() -> bool:
        nonlocal seen
        seen += sum(isinstance(event, kind) and event.generation == generation for event in reader.poll())
        return seen >= count

    wait_for(there, PATIENCE_SECONDS)


def ends(store: Store, generation: int) -> list[str]:
    """How the generation ended, as each node tells."""
    return [e.outcome for e in read_events(store) if isinstance(e, GenerationEnded) and e.generation == generation]


def completed_job(folder: Path) -> Completed:
    """Preempted once; gone on with by `convoy run`, which is then ended by SIGTERM; and brought to its end."""
    with ImdsStandIn() as imds:
        place, job = Place(folder, {"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}), "taken"
        store = job_store(str(place.root), job)
        with running(place, job, OVERRIDES) as process:
            preempt(imds, store, generation=1)
            await_events(store, 2, StepDone, count=5)
            os.kill(process.pid, signal.SIGTERM)
            first = ended(process)
        with running(place, job, OVERRIDES) as process:
            return Completed(place, job, [first, ended(process)])


def preempted_in_a_row(folder: Path, times: int) -> Completed:
    """Preempted so many times, each time soon after it began to train."""
    with ImdsStandIn() as imds:
        place, job = Place(folder, {"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}), "often"
        store = job_store(str(place.root), job)
        with running(place, job, OVERRIDES) as process:
            for generation in range(1, times + 1):
                preempt(imds, store, generation)
            return Completed(place, job, [ended(process)])
