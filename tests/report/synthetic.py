"""Event logs of jobs that never ran, with a clock of their own; and what their pages show."""

import contextlib
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from convoy.config.run import RunConfig
from convoy.display.page import Page, Value, Values
from convoy.job.events.registry import (
    CheckpointSaved,
    Environment,
    Evaluated,
    Event,
    FailureDetected,
    GangStopped,
    GenerationEnded,
    GenerationStarted,
    MemoryPeak,
    ModelBuilt,
    RankThroughput,
    Rent,
    SampleText,
    StepDone,
    WorkerExited,
    WorkerReady,
    encode,
)
from convoy.storage import Store
from convoy.storage.log import BackgroundLog

CONFIG: dict[str, Any] = RunConfig().model_dump(mode="json")
TOKENS = 4096
STEP_SECONDS = 0.4
FLOPS_PER_TOKEN = 2.0e7
DEVICE = "AMD EPYC 7R13"
MATMUL_TFLOPS = 0.25
LOG_TAIL = (
    'Traceback (most recent call last):\n  File "worker.py", line 12, in <module>\nMemoryError: <no room> for `x`'
)
SAMPLE = "x) -> None:\n    for item in self._items[1:]:\n        print(`item` * 2)  # <b>not bold</b>"


@dataclass
class Log:
    """Appends events at `t`; `wait` moves the clock."""

    t: float = 1_800_000_000.0
    events: list[Event] = field(default_factory=list)
    generation: int = 0
    world_size: int = 2
    rents: Mapping[int, Rent] = field(default_factory=dict)
    """By node: how its machine was bought."""

    def __post_init__(self) -> None:
        self.t = max([self.t, *(event.t for event in self.events)])

    def wait(self, seconds: float) -> None:
        self.t += seconds

    def add(self, event: Event, rank: int | None = None, node: int | None = None) -> None:
        """Stamp the event with the clock, this generation and its writer (one rank per node)."""
        stamp = {"t": self.t, "generation": self.generation, "rank": rank, "node": rank or 0 if node is None else node}
        self.events.append(event.model_copy(update=stamp))  # type: ignore[arg-type]

    def form(self, generation: int, run: str = "TrainFlow/7", attempt: int = 0, parent: int | None = None) -> None:
        """A generation of two nodes, without what its workers report. parent: the step of the generation before."""
        self.generation = generation
        origin: dict[str, Any] = {} if parent is None else {"parent_generation": generation - 1, "parent_step": parent}
        self.add(GenerationStarted(run=run, attempt=attempt, nodes=2, world_size=2, **origin), node=0)

    def step(self, number: int) -> None:
        """A step of a second, alone."""
        self.wait(1)
        self.add(StepDone(step=number, loss=1, grad_norm=1, lr=1, tokens=1, seconds=1), rank=0)

    def start(
        self, generation: int = 0, world_size: int = 2, parent: tuple[int, int] | None = None, attempt: int = 0
    ) -> None:
        """A generation with one rank per node: formed, imported, connected, built."""
        self.generation, self.world_size = generation, world_size
        facts: dict[str, Any] = {"attempt": attempt, "nodes": world_size, "world_size": world_size}
        facts |= {} if parent is None else {"parent_generation": parent[0], "parent_step": parent[1]}
        for node in range(world_size):
            self.add(GenerationStarted(run="TrainFlow/7", rent=self.rents.get(node), **facts), node=node)
        for phase, seconds in (("imported", 1.5), ("connected", 1.7), ("built", 2.4)):
            self.wait(0.5)
            for rank in range(world_size):
                self.add(WorkerReady(phase=phase, seconds=seconds + 0.1 * rank), rank=rank)
        for rank in range(world_size):
            self.add(_environment(), rank=rank)
        self.add(ModelBuilt(name="tiny", parameters=3_601_152, flops_per_token=FLOPS_PER_TOKEN), rank=0)

    def steps(self, first: int, last: int, every: int = 85, steps_in_all: int = 170) -> None:
        """Steps first..last, slower by half while warming up, with evaluation and checkpoint every so many steps."""
        noise = random.Random(first)
        for step in range(first, last + 1):
            warm = 1.5 if step < first + 5 else 1.0
            self.wait(STEP_SECONDS * warm)
            self.add(_step(step, warm, noise.gauss(0, 1), steps_in_all), rank=0)
            if step == first:
                self.add(WorkerReady(phase="first_step", seconds=3.1), rank=0)
            if step % 20 == 0:
                self._report_ranks(step)
            if step % every == 0:
                self.evaluate(step)
                self.wait(0.2)
                self.add(CheckpointSaved(step=step, attempt="a", bytes=43_213_824, seconds=0.2), rank=0)

    def evaluate(self, step: int) -> None:
        loss = _loss(step) + 0.05
        self.wait(0.5)
        self.add(Evaluated(step=step, loss=loss, bits_per_byte=loss / 2.3, tokens=16_384, seconds=0.5), rank=0)

    def finish(self, step: int) -> None:
        self.add(SampleText(step=step, prompt="def main(", text=SAMPLE), rank=0)
        self.wait(0.3)
        for node in range(self.world_size):
            self.add(GenerationEnded(outcome="finished", step=step), node=node)

    def fail(self, step: int, rank: int = 1) -> None:
        """`rank` is killed; then the others notice, and the agents end the generation."""
        reason = "MemoryError: <no room> for `x`"
        self.wait(0.1)
        self.add(WorkerExited(worker=rank, signal="SIGKILL", reason=reason, log_tail=LOG_TAIL), node=rank)
        self.wait(0.1)
        for other in (r for r in range(self.world_size) if r != rank):
            self.add(WorkerExited(worker=other, exit_code=1, reason="connection reset by peer"), node=other)
        for node in range(self.world_size):
            self.add(GenerationEnded(outcome="failed", step=step), node=node)

    def restart(self, step: int, parent: tuple[int, int], rank: int = 1) -> None:
        """`rank` is killed; it is settled in 0.2 s, all workers are gone in 0.1 s, and a generation forms in place."""
        reason = "MemoryError: <no room> for `x`"
        self.wait(0.2)
        self.add(WorkerExited(worker=rank, signal="SIGKILL", reason=reason, log_tail=LOG_TAIL), node=rank)
        failure = FailureDetected(
            cause="exited", failed_node=rank, worker=rank, signal="SIGKILL", reason=reason, log_tail=LOG_TAIL,
            step=step, silent_seconds=0.2, action="restart",
        )  # fmt: skip
        self.add(failure, node=0)
        self.wait(0.1)
        for node in range(self.world_size):
            self.add(GangStopped(seconds=0.1), node=node)
            self.add(GenerationEnded(outcome="failed", step=step), node=node)
        self.wait(0.1)
        self.start(self.generation + 1, self.world_size, parent)

    def _report_ranks(self, step: int) -> None:
        for rank in range(self.world_size):
            tokens = 20 * TOKENS // self.world_size
            self.add(RankThroughput(step=step, tokens=tokens, seconds=20 * STEP_SECONDS), rank=rank)
            self.add(MemoryPeak(step=step, bytes=812_000_000 + 1_000_000 * rank, device="host"), rank=rank)


def log_of_steps(steps: int) -> Log:
    """A generation of two nodes and so many steps of a second, from the first one on."""
    log = Log()
    log.form(0)
    for number in range(1, steps + 1):
        log.step(number)
    return log


def finished_job() -> list[Event]:
    """170 steps of 2 ranks, undisturbed."""
    log = Log(events=running_job(170))
    log.finish(170)
    return log.events


def failed_job() -> list[Event]:
    """Rank 1 is killed after step 120; the newest checkpoint holds step 85."""
    log = Log(events=running_job(120))
    log.fail(120)
    return log.events


def running_job(step: int = 90) -> list[Event]:
    """In the middle."""
    log = Log()
    log.start()
    log.evaluate(0)
    log.steps(1, step)
    return log.events


def resumed_job() -> list[Event]:
    """The failed job, gone on with from step 85 by 2 ranks, and finished."""
    log = Log(events=failed_job())
    log.wait(100)
    log.start(generation=1, parent=(0, 85), attempt=1)
    log.steps(86, 170)
    log.finish(170)
    return log.events


def restarted_job() -> list[Event]:
    """Rank 1 is killed after step 120; the gang restarts in place from step 85, and finishes."""
    log = Log(events=running_job(120))
    log.restart(120, parent=(0, 85))
    log.steps(86, 170)
    log.finish(170)
    return log.events


def blocks(page: Page, kind: type) -> list[Any]:
    """The blocks of that kind on the page."""
    return [block for block in page.blocks if isinstance(block, kind)]


def value(page: Page, title: str) -> Value:
    """The headline number of that title."""
    return next(v for values in blocks(page, Values) for v in values.items if v.title == title)


def write_log(job: Store, events: Iterable[Event]) -> None:
    """The events where a job's writers put them, with the times they have."""
    with contextlib.ExitStack() as open_:
        appenders: dict[str, BackgroundLog] = {}
        for event in events:
            writer = "agent" if event.rank is None else f"rank{event.rank:05d}"
            name = f"events/{event.generation:06d}/{event.node:05d}/{writer}"
            if name not in appenders:
                appenders[name] = job.open_log(name)
                open_.callback(appenders[name].close)
            appenders[name].append(encode(event))


def _environment() -> Environment:
    versions = {"python": "3.11.9", "torch": "2.13.0", "metaflow": "2.19.39", "convoy": "0.1.0"}
    return Environment(versions=versions, device=DEVICE, threads=1, matmul_tflops=MATMUL_TFLOPS)


def _loss(step: int) -> float:
    return 4.6 + 3.7 * math.exp(-step / 35)


def _step(step: int, warm: float, noise: float, steps_in_all: int) -> StepDone:
    seconds = STEP_SECONDS * warm * (1 + 0.01 * noise)
    return StepDone(
        step=step,
        loss=_loss(step) + 0.06 * noise,
        grad_norm=0.4 + 3 * math.exp(-step / 20) + 0.03 * abs(noise),
        lr=1e-3 * min(step / 17, 0.55 + 0.45 * math.cos(math.pi * step / steps_in_all)),
        tokens=TOKENS,
        seconds=seconds,
        data_seconds=0.01 * seconds,
        forward_seconds=0.30 * seconds,
        backward_seconds=0.58 * seconds,
        optimizer_seconds=0.06 * seconds,
        exchange_seconds=0.02 * seconds,
    )
