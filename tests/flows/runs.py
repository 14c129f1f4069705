"""Runs of the train flow that several tests look at; each is made once in a session."""

import base64
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convoy.events.log import read_events
from convoy.events.types import AnyEvent
from convoy.job.record import job_store
from convoy.storage import Store
from tests.flows.places import FLOW, SMOKE, Place, flow_command, wait_for, worker_pid

NO_EXPORT = "checkpoint.export_model=false"
LONG = f"train.steps=120 checkpoint.every_steps=20 evaluation.every_steps=60 report.card_refresh_seconds=1 {NO_EXPORT}"


@dataclass(frozen=True)
class Run:
    """A run that has ended, and the job it worked on."""

    place: Place
    done: "subprocess.CompletedProcess[str]"
    id: str
    job: str

    @property
    def pathspec(self) -> str:
        return f"TrainFlow/{self.id}"

    @property
    def store(self) -> Store:
        return job_store(str(self.place.root), self.job)

    @property
    def folder(self) -> Path:
        return self.place.root / self.job

    def events(self) -> list[AnyEvent]:
        return read_events(self.store)

    def data(self, *names: str) -> dict[str, Any]:
        """These artifacts of the run, as the Client API gives them."""
        reading = ", ".join(f"{name!r}: run.data.{name}" for name in names)
        found: dict[str, Any] = self.place.client(f"run = Run({self.pathspec!r})\nanswer = {{{reading}}}")
        return found

    def cards(self, step: str) -> list[tuple[str, str]]:
        """The cards of the step's tasks: (task id, what it shows), newest attempt last."""
        code = f"answer = [(t.id, c.get()) for t in Step('{self.pathspec}/{step}') for c in get_cards(t)]"
        return [(task, card_text(html)) for task, html in self.place.client(code)]

    def copied(self, folder: Path) -> Place:
        """A place with the jobs of this one, to go on with or to spoil."""
        place = Place(folder)
        shutil.copytree(self.place.root, place.root)
        return place


def card_text(html: str) -> str:
    """The data a card shows: Metaflow keeps it in the page, as JSON in base64."""
    (data,) = re.findall(r'__MF_DATA__\["[^"]+"\] = "([^"]+)"', html)
    return base64.b64decode(data).decode()


def newest(place: Place, done: "subprocess.CompletedProcess[str]", job: str | None = None) -> Run:
    """The newest run of a place, whose job is named after it unless told."""
    run = place.runs()[-1]
    return Run(place, done, run, job or f"TrainFlow-{run}")


@functools.cache
def smoke_run(folder: Path) -> Run:
    """A run of 20 steps with a job of its own name."""
    place = Place(folder)
    return newest(place, place.flow("run"))


def continued_run(run: Run, folder: Path, steps: int) -> Run:
    """The job of `run` goes on, in a copy of its place, to that many steps: started by Metaflow's Runner."""
    place, overrides = run.copied(folder), {"train.steps": steps, "checkpoint.export_model": False}
    configured = f"config=[('run', '{SMOKE}')], config_value=[('set', {overrides})]"
    script = (
        f"from metaflow import Runner\n"
        f"with Runner('{FLOW}', show_output=False, {configured}).run(job='{run.job}') as running:\n"
        f"    print(running.status, running.run.pathspec)"
    )
    return newest(place, place.run(sys.executable, "-c", script), run.job)


@dataclass(frozen=True)
class Interrupted:
    """A run whose second node was stopped, then killed; and what was seen while it was stopped."""

    run: Run
    second: "subprocess.CompletedProcess[str]"
    """Another run of the same job, started meanwhile."""
    resumed: "subprocess.CompletedProcess[str]"
    """`resume` of the same run, meanwhile."""
    shown: "subprocess.CompletedProcess[str]"
    """`convoy show JOB`, meanwhile."""
    live: str
    """The live card, meanwhile."""


def interrupted_run(folder: Path) -> Interrupted:
    """A run that is killed after its first checkpoint."""
    place, job = Place(folder), "bumpy"
    process = place.start(*flow_command("run", "--job", job, overrides=LONG))
    pid = stop_worker(place.root / job, generation=1, step=20)
    try:
        run = Run(place, subprocess.CompletedProcess((), 0, "", ""), place.runs()[-1], job)
        second = place.flow("run", "--job", job, overrides=LONG)
        resumed = place.run(*flow_command("resume")[:2], "resume", "train")
        shown = place.convoy("show", job)
        live = wait_for(lambda: next((text for _, text in run.cards("train") if "Training" in text), None))
    finally:
        os.kill(pid, signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=120)
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    return Interrupted(Run(place, done, run.id, job), second, resumed, shown, live)


def stop_worker(job: Path, generation: int, step: int) -> int:
    """Stop the second node's worker as soon as that step is committed; gives its process id."""
    pid = wait_for(lambda: worker_pid(job, generation, 1))
    wait_for((job / "commits" / f"{generation:06d}-{step:09d}.json").exists)
    os.kill(pid, signal.SIGSTOP)
    return int(pid)


def resumed_run(interrupted: Run) -> Run:
    """`resume train` of a failed run, whose second node is killed once more, with one retry."""
    place, job = interrupted.place, interrupted.job
    process = place.start(*flow_command("resume")[:2], "resume", "train", "--with", "retry:times=1")
    os.kill(stop_worker(place.root / job, generation=2, step=40), signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=120)
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    return newest(place, done, job)
