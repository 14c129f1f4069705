"""Runs of the train flow that several tests look at; each is made once in a session."""

import base64
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convoy.config.loader import read_run, resolve
from convoy.config.notify import TARGET
from convoy.job.events.log import read_events
from convoy.job.events.registry import Event
from convoy.job.generations import form_generation
from convoy.job.lineage import CommitRef
from convoy.job.record import ensure_record, job_store, keep_config
from convoy.storage import Store
from tests.flows.places import FLOW, SMOKE, Place, agent_pid, flow_command, wait_for, with_all_below, worker_pid
from tests.sinks import Sink, webhook

NO_EXPORT = "checkpoint.export_model=false"
CARD_AT_THE_END = "report.card_refresh_seconds=60"
"""Each refresh is a process: for runs whose live card nobody looks at."""
LONG = f"train.steps=120 checkpoint.every_steps=20 evaluation.every_steps=60 {CARD_AT_THE_END} {NO_EXPORT}"


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

    def events(self) -> list[Event]:
        return read_events(self.store)

    def data(self, *names: str) -> dict[str, Any]:
        """These artifacts of the run, as the Client API gives them."""
        reading = ", ".join(f"{name!r}: run.data.{name}" for name in names)
        found: dict[str, Any] = self.place.client(f"run = Run({self.pathspec!r})\nanswer = {{{reading}}}")
        return found

    def cards(self, step: str, first: bool = False) -> list[tuple[str, str]]:
        """The cards of the step's tasks: (task id, what it shows), newest attempt last.

        first: of node 0's task alone; another that was lost early may have none, of which Metaflow makes an error.
        """
        tasks = f"[t for t in Step('{self.pathspec}/{step}') if not ({first} and '_node_' in t.id)]"
        code = f"answer = [(t.id, c.get()) for t in {tasks} for c in get_cards(t)]"
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
    """A run of 20 steps with a job of its own name, that measures its machine."""
    place = Place(folder)
    return newest(place, place.flow("run", overrides="train.matmul_peak_seconds=0.1"))


def job_of_20_steps(folder: Path) -> tuple[Place, str]:
    """A job of the smoke configuration as a preflight sees it, with a commit of 20 steps that nobody trained."""
    place, job = Place(folder), "trained"
    store, config = job_store(str(place.root), job), resolve(read_run(SMOKE.read_text()), {})
    ensure_record(store, job, config, "fingerprint")
    digest = keep_config(store, config)
    form_generation(store, formation="f", nodes=2, world_size=2, config_hash=digest, rendezvous="")
    store.create(CommitRef(generation=1, step=20).name, b"{}")
    return place, job


def continued_run(run: Run, folder: Path, steps: int) -> Run:
    """The job of `run` goes on, in a copy of its place, to that many steps: started by Metaflow's Runner."""
    place, overrides = (
        run.copied(folder),
        {"train.steps": steps, "checkpoint.export_model": False, "report.card_refresh_seconds": 60},
    )
    configured = f"config=[('run', '{SMOKE}')], config_value=[('set', {overrides})]"
    script = (
        f"from metaflow import Runner\n"
        f"with Runner('{FLOW}', show_output=False, {configured}).run(job='{run.job}') as running:\n"
        f"    print(running.status, running.run.pathspec)"
    )
    return newest(place, place.run(sys.executable, "-c", script), run.job)


RESTARTED_STEPS = 400
"""For a card to be drawn while it trains."""


@dataclass(frozen=True)
class Interrupted:
    """A run whose nodes were both frozen, and then lost the second one; and what was seen while they were frozen."""

    run: Run
    second: "subprocess.CompletedProcess[str]"
    """Another run of the same job, started meanwhile."""
    resumed: "subprocess.CompletedProcess[str]"
    """`resume` of the same run, meanwhile."""
    shown: "subprocess.CompletedProcess[str]"
    """`convoy show JOB`, meanwhile."""


@dataclass(frozen=True)
class Restarted:
    """A run that lost a worker and went on in place."""

    run: Run
    live: str
    """The first card found after that which shows training."""


def interrupted_run(folder: Path) -> Interrupted:
    """A run whose second node is lost after its first checkpoint."""
    place, job = Place(folder), "bumpy"
    process = place.start(*flow_command("run", "--job", job, overrides=LONG))
    first, second_node = frozen_nodes(place.root / job, generation=1, step=20)
    try:
        run = Run(place, subprocess.CompletedProcess((), 0, "", ""), place.runs()[-1], job)
        second = place.flow("run", "--job", job, overrides=LONG)
        resumed = place.run(*flow_command("resume")[:2], "resume", "train")
        shown = place.convoy("show", job)
    finally:
        os.kill(second_node[0], signal.SIGKILL)
        for pid in (*second_node[1:], *first):
            _signalled(pid, signal.SIGCONT)
    return Interrupted(Run(place, _ended(process), run.id, job), second, resumed, shown)


def frozen_nodes(job: Path, generation: int, step: int) -> tuple[list[int], list[int]]:
    """Freeze both nodes as soon as that step is committed; the processes of each, its agent first."""
    agents = [_agent(job, generation, step, node) for node in (0, 1)]
    for agent in agents:
        os.kill(agent, signal.SIGSTOP)  # first, or it would see that its workers do not go on
    first, second = (with_all_below(agent) for agent in agents)
    for pid in (*first, *second):
        _signalled(pid, signal.SIGSTOP)
    return [pid for pid in first if pid not in second], second


def _signalled(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # one that an agent had asked something has answered, and ended
        os.kill(pid, number)


def resumed_run(interrupted: Run) -> Run:
    """`resume train` of a failed run, whose second node is lost once more, with one retry."""
    place, job = interrupted.place, interrupted.job
    process = place.start(*flow_command("resume")[:2], "resume", "train", "--with", "retry:times=1")
    os.kill(_agent(place.root / job, generation=2, step=None, node=1), signal.SIGKILL)
    return newest(place, _ended(process), job)


def restarted_run(folder: Path) -> Restarted:
    """A run one of whose workers is killed after its first checkpoint, without a retry."""
    place, job = Place(folder), "worn"
    longer = f"{LONG} train.steps={RESTARTED_STEPS} report.card_refresh_seconds=1"
    process = place.start(*flow_command("run", "--job", job, overrides=longer))
    _agent(place.root / job, generation=1, step=20, node=1)
    pid = worker_pid(place.root / job, 1, 1)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    live = wait_for(lambda: _training_shown(place), pause=0.2)
    return Restarted(newest(place, _ended(process), job), live)


def _training_shown(place: Place) -> str | None:
    """What a card on disk shows that shows training, if one does now."""
    for card in place.folder.rglob("*.html"):
        with contextlib.suppress(ValueError):  # one that is being written
            text = json.dumps(json.loads(card_text(card.read_text())), ensure_ascii=False)
            if "Running ·" in text:
                return text
    return None


@dataclass(frozen=True)
class Watched:
    """A run that lost its first node, and what its webhook got."""

    run: Run
    messages: Sink
    processes: str
    """What `ps` listed while it trained."""


def node0_lost_run(folder: Path) -> Watched:
    """A run whose first node, Metaflow's task of the gang, is killed after its first checkpoint, with one retry; a
    webhook, MLflow and TensorBoard follow it."""
    job, watched = "headless", "notify.on=[started,preempted,failed,resumed,finished,budget,stalled]"
    with webhook() as sink:
        place = Place(folder, {TARGET: sink.url, "MLFLOW_ALLOW_FILE_STORE": "true"})
        trackers = f"trackers=[{{mlflow:\\ file://{folder}/ml}},{{tensorboard:\\ board}}]"
        overrides = f"{LONG} {watched} {trackers}"
        process = place.start(*flow_command("run", "--job", job, "--with", "retry:times=1", overrides=overrides))
        agent = _agent(place.root / job, generation=1, step=20, node=0)
        listed = subprocess.run(["ps", "-e", "-o", "args"], capture_output=True, text=True, check=True).stdout
        os.kill(agent, signal.SIGKILL)
        return Watched(newest(place, _ended(process), job), sink, listed)


def _agent(job: Path, generation: int, step: int | None, node: int) -> int:
    """The agent of a node as soon as that step is committed; None: any."""
    wanted = "*" if step is None else f"{step:09d}"
    wait_for(lambda: list((job / "commits").glob(f"{generation:06d}-{wanted}.json")))
    return int(wait_for(lambda: agent_pid(job, generation, node)))


def _ended(process: "subprocess.Popen[str]") -> "subprocess.CompletedProcess[str]":
    stdout, stderr = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
