"""A training job as plain data, which pages, terminal and JSON show.

Durations are in seconds, times in Unix seconds, sizes in bytes, losses in nats per token.
"""

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from convoy.catalog.measured_machine import MeasuredMachine
from convoy.display.charts import MAX_POINTS
from convoy.display.page import Tone
from convoy.job.events.gang import FirstCause
from convoy.job.events.hardware import ThrottleReason
from convoy.job.events.registry import FailureKind, ParamDtypeChoice
from convoy.report.analysis.cost import Cost
from convoy.stats.spread import Spread


class ReportPart(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True, ser_json_inf_nan="strings")


class Outcome(ReportPart):
    """State of the newest generation."""

    state: Literal["running", "finished", "stopped", "preempted", "failed", "lost"]
    """lost: the log says that it runs, but no run gives a sign of life."""
    reason: str = ""
    """Why it stopped: the reason all ranks agreed on and its detail, the notice, or the age of the last heartbeat."""
    notice: str = ""
    """Source of the notice for which it was preempted, or is about to end while it runs."""
    cause: FirstCause | None = None
    """The first cause of a failure; None: nothing was seen to fail. While running: why the gang restarts in place."""


class Step(ReportPart):
    """One optimizer step of the living branch."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens_per_second: float
    skipped: bool


class Validation(ReportPart):
    """One evaluation on the held-out split."""

    step: int
    loss: float
    bits_per_byte: float | None


class StepTime(ReportPart):
    """Medians of rank 0's step time and its parts, warm-up excluded. `other` is the rest of each step."""

    total: Spread
    parts: dict[str, Spread]
    """data, forward, backward, optimizer (with clipping), exchange (waiting for decisions, norm and loss of all ranks),
    other."""


class TrainedStretch(ReportPart):
    """Training from the second logged step of each generation to its last one, steps that were lost among them; of
    generations with the newest one's ranks and configuration."""

    steps: int
    seconds: float
    """Saves are in it, evaluations are not."""


class RankRow(ReportPart):
    """One rank of the newest generation."""

    rank: int
    node: int
    tokens_per_second: Spread | None
    """The rate of this rank's own tokens. The interval with the warm-up is left out where there are others."""
    memory_peak_bytes: int | None
    memory_device: str | None
    matmul_tflops: float | None


class Checkpoint(ReportPart):
    """A commit of the living branch that can be restored."""

    t: float
    """When it became known."""
    step: int
    generation: int
    bytes: int
    tier: str
    """URI of the job where it was committed."""
    tiers: tuple[str, ...] = ()
    """The job's URIs on all tiers that have it now."""
    verified: bool = False
    """Every part was read back whole from one of them."""
    seconds: float
    """How long training stood still."""
    staged_seconds: float = 0.0
    committed_seconds: float = 0.0
    """Both count from the call."""


class Tier(ReportPart):
    """A shared tier for checkpoints, at the log's last event."""

    uri: str
    newest_step: int | None
    """The newest step of the living branch that it has; None: it has none."""
    behind_steps: int
    """Steps to the newest checkpoint of any tier."""
    behind_seconds: float
    """Time since the oldest checkpoint that is newer than the tier's newest was committed elsewhere."""
    error: str | None
    """Why the last commit that was to come here did not; None: it did."""


class SaveCounts(ReportPart):
    """Saves that failed or were skipped, over all generations."""

    skipped: int = 0
    """Saves that were due while both buffers were in use."""
    given_up: int = 0
    moved: int = 0
    """Saves that failed on a tier and began again on the next one."""
    damaged: int = 0
    """Commits that turned out not to be what was written."""


class SaveTime(ReportPart):
    """What periodic saves took: those after which their generation trained on, with the newest one's ranks and
    configuration."""

    stall_seconds: Spread
    """How long training stood still."""
    durable_seconds: Spread | None
    """From the call until the ranks knew of the commit, at the end of a step; None: an older log without it."""


class SaveAlert(ReportPart):
    """Saves fail one after the other, while training continues without new checkpoints."""

    t: float
    step: int
    failures: int
    newest: int | None
    """Step of the newest commit."""
    error: str


class StorageTrouble(ReportPart):
    """A tier that does not take and give bytes, at the log's last event."""

    tier: str
    """URI of the job there."""
    problem: str
    """The problem in one line, as the first node saw it."""
    since: float
    nodes: tuple[int, ...]
    """The nodes that see it."""


class CurrentStraggler(ReportPart):
    """A node that the others wait for, at the log's last event."""

    node: int
    share: float
    """The share of the others' time."""
    since: float


class Restore(ReportPart):
    """A state that was restored from a commit."""

    generation: int
    from_generation: int
    step: int
    seconds: float


class Generation(ReportPart):
    """One formation of the gang."""

    number: int
    run: str
    attempt: int = 0
    """Metaflow's attempt of the run's step: generations of one attempt were formed in place, one after the other."""
    nodes: int
    world_size: int
    training: str = ""
    """`training_hash` of its configuration; empty: not in the log."""
    engine: str = ""
    """What trained, with its version; empty: Convoy's own engine, or no rank got as far as to report it."""
    parent_generation: int | None
    parent_step: int | None
    why: str
    started: float
    seconds: float
    """The time from its first event to its last."""
    last_step: int
    outcome: Literal["running", "finished", "stopped", "preempted", "failed", "ended without a word"]


class Incident(ReportPart):
    """A generation's end by failure or preemption. Seconds count from when it happened, as far as is known: from the
    last sign of life of what failed, or from the notice."""

    t: float
    """When it was detected."""
    generation: int
    kind: FailureKind | Literal["preempted", "unknown"]
    node: int | None
    rank: int | None
    """None: the node as a whole, or not known."""
    what: str
    """What happened, as text."""
    step: int
    """Steps done by then, as far as they were logged."""
    detected_s: float | None
    """Seconds until the first cause was settled; None: an older log without it."""
    stopped_s: float | None
    """Seconds until no worker was left on any node that reported it."""
    recovered_s: float | None
    """Seconds until the first step was done in a later generation."""
    beyond_s: float | None
    """Seconds until the first logged step past the last one that was done before."""
    steps_recomputed: int | None
    """Steps that were done before and again since; None: no later generation yet."""
    then: Literal["restarted in place", "next attempt", "next run", "not gone on"]


class NodeTime(ReportPart):
    """Where a node's time in the gang went, in seconds. The parts add up to the time of the gangs it was in."""

    node: int
    productive_seconds: float
    """Steps and evaluations that the job kept."""
    recomputed_seconds: float
    """Steps that were lost: their work was, or must be, done again."""
    checkpoint_seconds: float
    """Saves for which training stood still."""
    measuring_seconds: float
    """Time between the first step of a generation and the second: the machine is measured, the writer is started."""
    restarting_seconds: float
    """Time from the start, or from the failure, until the first step of a generation was done."""
    waiting_seconds: float
    """Waits for ranks of other nodes; after the last step, for the last commit, the export and the others' end; while
    the gang runs, the time since the newest step by which the next one is late."""
    other_seconds: float
    """Time between two later steps, outside of evaluations and saves: mostly for the log."""

    @property
    def seconds(self) -> float:
        return float(sum(getattr(self, part) for part in NodeTime.model_fields if part != "node"))


class Goodput(ReportPart):
    """The share of the gang's time in which the job progressed."""

    share: float
    """Productive node seconds over all node seconds."""
    seconds: float
    """Gang time: all generations, and the pauses in which one was formed in place after another."""
    nodes: tuple[NodeTime, ...]


class Sample(ReportPart):
    """Text the model generated."""

    step: int
    prompt: str
    text: str


class StartupPhase(ReportPart):
    """A point of start-up, reached by the slowest rank of the newest generation."""

    name: str
    at_seconds: float
    """Seconds since the workers' processes began."""
    took_seconds: float


class Moment(ReportPart):
    """A line of the events timeline."""

    t: float
    text: str
    tone: Tone = "plain"


class Model(ReportPart):
    """The model as it trains."""

    name: str
    parameters: int
    flops_per_token: float | None
    unit: str = "tokens"
    """What is counted as tokens: those, or a user's samples, such as images."""


class Hardware(ReportPart):
    """What the newest generation ran on."""

    device: str
    threads: int
    matmul_tflops: Spread | None
    """Measured rate of one rank with all ranks busy, over the ranks."""
    peak_tflops: float | None
    versions: dict[str, str]
    machine: MeasuredMachine | None = None
    """What the slowest rank found after the job's first step; None: no generation measured."""


class NetworkUse(ReportPart):
    """What carried the traffic between hosts of those ranks of the newest generation that it carried alike."""

    name: str
    """For people: `EFA with GPUDirect`."""
    verdict: str
    ranks: int
    world_size: int
    counters: Literal["agree", "disagree", "absent"]
    """Whether the hosts' RDMA adapters sent what RDMA must have sent."""
    cause: str | None
    """The first cause of a verdict that could be better."""
    fix: str | None


class Throttling(ReportPart):
    """GPUs of a node whose clock was kept down for one reason."""

    reason: ThrottleReason
    gpus: tuple[int, ...]
    """Those that reported it at least once."""
    share: float
    """The share of the readings of all the node's GPUs."""


class NodeUse(ReportPart):
    """What a node's hardware did, as its agent sampled it. Nodes on one host have its cores, memory and adapters in
    common. Means are over time, and over the GPUs of the node's workers; None: not reported."""

    node: int
    seconds: float
    """The time that the samples cover."""
    cpu: float
    """Share of the time of all cores."""
    memory_bytes: int
    """Highest, of the host."""
    memory_total_bytes: int
    disk_free_bytes: int | None
    """The newest, of the file system with the job's root."""
    sent_bytes_per_second: float
    """By all network interfaces but the loopback."""
    received_bytes_per_second: float
    rdma_sent_bytes_per_second: float | None
    rdma_received_bytes_per_second: float | None
    gpus: int
    gpu: float | None
    """Share of the time in which a kernel ran."""
    lowest_gpu: float | None
    """The same of the GPU with the lowest share at each time."""
    gpu_power_watts: float | None
    """Mean of one GPU."""
    gpu_temperature_celsius: float | None
    """Highest of any."""
    gpu_memory_bytes: int | None
    """Highest of any."""
    gpu_memory_total_bytes: int | None
    gpu_clock_hertz: float | None
    throttling: tuple[Throttling, ...]


class UsePoint(ReportPart):
    """Means over all nodes around one time."""

    t: float
    cpu: float
    gpu: float | None
    gpu_power_watts: float | None


class HardwareUse(ReportPart):
    """What the nodes' hardware did, by samples of every five seconds."""

    nodes: tuple[NodeUse, ...]
    """Over the time from the first logged step of each generation to its last one, where `while_training`."""
    points: tuple[UsePoint, ...]
    """Over all the time of the samples."""
    while_training: bool
    """False: no sample lies between two steps, so `nodes` has all samples."""
    no_gpus: str
    """Why GPUs that are there were not sampled, on one of the nodes; empty: they were, or there are none."""


class TrainReport(ReportPart):
    """A job, by its event log."""

    outcome: Outcome
    started: float | None
    last_event: float | None
    wall_seconds: float
    """Gang time: the sum of the generations' spans, without the pauses between attempts and runs."""
    step: int
    """Steps done on the living branch."""
    target_steps: int | None
    eta_seconds: float | None
    """The time left at the mean pace of the newest steps, evaluations and checkpoints included; None unless running."""
    pace_steps: int
    """Steps over which that pace was taken."""
    model: Model | None
    param_dtype: ParamDtypeChoice | None = None
    """How `train.param_dtype: auto` was decided; None: the configuration named the type."""
    hardware: Hardware | None
    network: tuple[NetworkUse, ...] = ()
    """By NCCL's log, most ranks first; empty on one host and without GPUs."""
    steps: tuple[Step, ...]
    validations: tuple[Validation, ...]
    warmup_steps: int
    """Steps left out at the start of each generation in the figures below."""
    measured_world_size: int | None
    """Ranks of the generations whose steps those figures hold."""
    measured_training: str = ""
    """`training_hash` of their configuration; empty: not in the log."""
    tokens_per_second: Spread | None
    """The rate of the whole gang in its steps, without checkpoints and evaluations; of samples, if `unit` says so."""
    step_time: StepTime | None
    hardware_use: HardwareUse | None = None
    """None: a log without samples, as of a very short job or an older version."""
    stretch: TrainedStretch | None
    """None before a step is done."""
    checkpoint_seconds: float
    """How long training stood still for saves, over all generations."""
    evaluation_seconds: float
    matmul_share: float | None
    """Model FLOP/s of a rank over its measured matmul rate."""
    mfu: float | None
    """Model FLOP/s of a rank over the device's dense peak; None where the peak is not known."""
    ranks: tuple[RankRow, ...]
    memory_peak_bytes: int | None
    checkpoints: tuple[Checkpoint, ...]
    """The checkpoints that can be restored; the last one is the newest durable step."""
    tiers: tuple[Tier, ...]
    """Shared tiers in order, the root first; none in an older log without tiers."""
    saves: SaveCounts
    save_time: SaveTime | None
    """None: no save was periodic."""
    alert: SaveAlert | None
    """None once a save is committed again."""
    storage_troubles: tuple[StorageTrouble, ...]
    """Tiers that agents of the newest attempt report as full or out of reach."""
    slow_nodes: tuple[CurrentStraggler, ...]
    restores: tuple[Restore, ...]
    generations: tuple[Generation, ...]
    incidents: tuple[Incident, ...]
    """The incidents of all generations, oldest first."""
    goodput: Goodput | None
    """None before anything was logged."""
    cost: Cost | None
    """None where the machines have no price, as in a local run."""
    notice_sources: dict[int, tuple[str, ...]]
    """For each node of the newest generation that reported them, the sources of its notices."""
    skipped_steps: int
    samples: tuple[Sample, ...]
    startup: tuple[StartupPhase, ...]
    timeline: tuple[Moment, ...]

    @property
    def unit(self) -> str:
        """What is counted as tokens: those, or a user's samples, such as images."""
        return self.model.unit if self.model else "tokens"


FORMAT = 1
"""Raised when a key changes its meaning or goes away; new keys may come without it."""


def to_json(report: TrainReport) -> dict[str, Any]:
    """The report as plain JSON data: the fields of `TrainReport` under their names, and `format`.

    Durations are in seconds, times in Unix seconds, sizes in bytes, losses in nats per token; what is not known is
    null and a number that is not finite is one of the strings `NaN`, `Infinity`, `-Infinity`. `steps` holds at most
    about MAX_POINTS evenly spaced steps besides the last; every step is in the event log.
    """
    stride = max(1, -(-len(report.steps) // MAX_POINTS))
    thinned = report.steps[::stride]
    if thinned and thinned[-1] is not report.steps[-1]:
        thinned = (*thinned, report.steps[-1])
    # Only pydantic's own JSON writes non-finite numbers as strings; `model_dump` leaves them as they are.
    text = report.model_copy(update={"steps": thinned}).model_dump_json()
    return {"format": FORMAT, **json.loads(text)}
