"""What is known of a training job: the plain data that pages, terminal and JSON show.

Durations are in seconds, times in Unix seconds, sizes in bytes, losses in nats per token.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from convoy.catalog.measured_machine import MeasuredMachine
from convoy.display.page import Tone
from convoy.job.events.failures import FirstCause
from convoy.job.events.types import FailureKind, ParamDtypeChoice
from convoy.report.analysis.cost import Cost
from convoy.stats.spread import Spread


class Fact(BaseModel):
    """What all parts of the report share."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")


class Outcome(Fact):
    """How the newest generation stands."""

    state: Literal["running", "finished", "stopped", "preempted", "failed", "lost"]
    """lost: the log says that it runs, and no run gives a sign of life."""
    reason: str = ""
    """Why it stopped: the reason all ranks agreed on and its detail, the notice, or the age of the last heartbeat."""
    notice: str = ""
    """Source of the notice for which it was preempted, or is about to end while it runs."""
    cause: FirstCause | None = None
    """Of a failure; None where nothing was seen to fail. While running: the gang restarts in place because of it."""


class Step(Fact):
    """One optimizer step of the living branch."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens_per_second: float
    skipped: bool


class Validation(Fact):
    """One evaluation on the held-out split."""

    step: int
    loss: float
    bits_per_byte: float | None


class StepTime(Fact):
    """Medians of rank 0's step time and its parts, warm-up excluded. `other` is the rest of each step."""

    total: Spread
    parts: dict[str, Spread]
    """data, forward, backward, optimizer (with clipping), exchange (waiting for decisions, norm and loss of all ranks),
    other."""


class Stretch(Fact):
    """Training from the second logged step of each generation to its last one, steps that were lost among them; of
    generations with the newest one's ranks and configuration."""

    steps: int
    seconds: float
    """Saves are in it, evaluations are not."""


class RankRow(Fact):
    """One rank of the newest generation."""

    rank: int
    node: int
    tokens_per_second: Spread | None
    """Of this rank's own tokens; the interval that holds the warm-up is left out where there are others."""
    memory_peak_bytes: int | None
    memory_device: str | None
    matmul_tflops: float | None


class Checkpoint(Fact):
    """A commit of the living branch that can be restored."""

    t: float
    """When it was known of."""
    step: int
    generation: int
    bytes: int
    tier: str
    """URI of the job where it was committed."""
    tiers: tuple[str, ...] = ()
    """URIs of the job on every tier that has it now."""
    verified: bool = False
    """Every part was read back whole from one of them."""
    seconds: float
    """For which training stood still."""
    staged_seconds: float = 0.0
    committed_seconds: float = 0.0
    """Both since the call."""


class Tier(Fact):
    """A shared place for checkpoints, at the log's last event."""

    uri: str
    newest_step: int | None
    """Of the living branch; None: it has none."""
    behind_steps: int
    """Behind the newest checkpoint of any tier."""
    behind_seconds: float
    """Since the oldest checkpoint that is newer than what the tier has was committed elsewhere."""
    error: str | None
    """Why the last commit that was to come here did not; None: it did."""


class SaveCounts(Fact):
    """Saves that did not go as they should, over all generations."""

    skipped: int = 0
    """Due while both buffers were in use."""
    given_up: int = 0
    moved: int = 0
    """Failed on a tier and begun anew on the next one."""
    damaged: int = 0
    """Commits that turned out not to be what was written."""


class SaveTime(Fact):
    """What periodic saves took: those after which their generation trained on, with the newest one's ranks and
    configuration."""

    stall_seconds: Spread
    """For which training stood still."""
    durable_seconds: Spread | None
    """From the call until the commit was known of, at the end of a step; None: a log of before that was told."""


class Alert(Fact):
    """Saves fail one after the other; training goes on without a net."""

    t: float
    step: int
    failures: int
    newest: int | None
    """Step of the newest commit."""
    error: str


class StorageTrouble(Fact):
    """A tier that does not take and give bytes, at the log's last event."""

    tier: str
    """URI of the job there."""
    problem: str
    """In one line, as the first node saw it."""
    since: float
    nodes: tuple[int, ...]
    """Which see it."""


class SlowNow(Fact):
    """A node that the others wait for, at the log's last event."""

    node: int
    share: float
    """Of the others' time."""
    since: float


class Restore(Fact):
    """A state that came from a commit."""

    generation: int
    from_generation: int
    step: int
    seconds: float


class Generation(Fact):
    """One formation of the gang."""

    number: int
    run: str
    attempt: int = 0
    """Of the run's step: generations of one attempt were formed in place, one after the other."""
    nodes: int
    world_size: int
    training: str = ""
    """`training_hash` of its configuration; empty: the log does not tell."""
    parent_generation: int | None
    parent_step: int | None
    why: str
    started: float
    seconds: float
    """From its first event to its last."""
    last_step: int
    outcome: Literal["running", "finished", "stopped", "preempted", "failed", "ended without a word"]


class Incident(Fact):
    """An end that a generation came to against its will. Seconds count from when it happened, as far as is known: from
    the last sign of life of what failed, or from the notice."""

    t: float
    """When it was detected."""
    generation: int
    kind: FailureKind | Literal["preempted", "unknown"]
    node: int | None
    rank: int | None
    """None: the node as a whole, or not known."""
    what: str
    """In words."""
    step: int
    """Steps done by then, as far as was logged."""
    detected_s: float | None
    """Until the first cause was settled; None: a log of before it was."""
    stopped_s: float | None
    """Until no worker was left on any node that told."""
    recovered_s: float | None
    """Until the first step was done in a later generation."""
    beyond_s: float | None
    """Until the first logged step past the last one that was done before."""
    steps_recomputed: int | None
    """Done before and again since; None: no later generation yet."""
    then: Literal["restarted in place", "next attempt", "next run", "not gone on"]


class NodeTime(Fact):
    """Where a node's time in the gang went, in seconds. The parts add up to the time of the gangs it was in."""

    node: int
    productive_seconds: float
    """Steps and evaluations that the job goes on from."""
    recomputed_seconds: float
    """Steps that were lost: their work was, or has to be, done again."""
    checkpoint_seconds: float
    """Training stood still for a save."""
    measuring_seconds: float
    """Between the first step of a generation and the second: the machine is measured, and what saves is started."""
    restarting_seconds: float
    """From the start, or from what went wrong, until the first step of a generation was done."""
    waiting_seconds: float
    """For ranks of other nodes; and after the last step, for the last commit, the export, and the end of the others."""
    other_seconds: float
    """Between two later steps, in neither of them, nor in an evaluation or a save: mostly for the log."""

    @property
    def seconds(self) -> float:
        return float(sum(getattr(self, part) for part in NodeTime.model_fields if part != "node"))


class Goodput(Fact):
    """The share of the gang's time in which the job got on."""

    share: float
    """Productive node seconds over all node seconds."""
    seconds: float
    """Gang time: all generations, and the pauses in which one was formed in place after another."""
    nodes: tuple[NodeTime, ...]


class Sample(Fact):
    """Text the model generated."""

    step: int
    prompt: str
    text: str


class Phase(Fact):
    """A point of start-up, reached by the slowest rank of the newest generation."""

    name: str
    at_seconds: float
    """Since the workers' processes began."""
    took_seconds: float


class Moment(Fact):
    """A line of the events timeline."""

    t: float
    text: str
    tone: Tone = "plain"


class Model(Fact):
    """The model as it trains."""

    name: str
    parameters: int
    flops_per_token: float | None


class Hardware(Fact):
    """What the newest generation ran on."""

    device: str
    threads: int
    matmul_tflops: Spread | None
    """Measured rate of one rank with all ranks busy, over the ranks."""
    peak_tflops: float | None
    versions: dict[str, str]
    machine: MeasuredMachine | None = None
    """What the slowest rank found after the job's first step; None: no generation measured."""


class TrainReport(Fact):
    """A job as its event log tells it."""

    outcome: Outcome
    started: float | None
    last_event: float | None
    wall_seconds: float
    """Gang time: the sum of the generations' spans, without the pauses between attempts and runs."""
    step: int
    """Steps done on the living branch."""
    target_steps: int | None
    eta_seconds: float | None
    """By the mean pace of the newest steps, evaluations and checkpoints included; None unless running."""
    pace_steps: int
    """Steps over which that pace was taken."""
    model: Model | None
    param_dtype: ParamDtypeChoice | None = None
    """How `train.param_dtype: auto` was decided; None: the configuration said the type."""
    hardware: Hardware | None
    steps: tuple[Step, ...]
    validations: tuple[Validation, ...]
    warmup_steps: int
    """Steps left out at the start of each generation in the figures below."""
    measured_world_size: int | None
    """Ranks of the generations whose steps those figures hold."""
    measured_training: str = ""
    """`training_hash` of their configuration; empty: the log does not tell."""
    tokens_per_second: Spread | None
    """Of the whole gang while stepping: checkpoints and evaluations are not in it."""
    step_time: StepTime | None
    stretch: Stretch | None
    """None before a step is done."""
    checkpoint_seconds: float
    """For which training stood still, over all generations."""
    evaluation_seconds: float
    matmul_share: float | None
    """Model FLOP/s of a rank over its measured matmul rate."""
    mfu: float | None
    """Model FLOP/s of a rank over the device's dense peak; None where the peak is not known."""
    ranks: tuple[RankRow, ...]
    memory_peak_bytes: int | None
    checkpoints: tuple[Checkpoint, ...]
    """Those that can be restored; the last one is the newest durable step."""
    tiers: tuple[Tier, ...]
    """Shared tiers in order, the root first; none in a log of before there were tiers."""
    saves: SaveCounts
    save_time: SaveTime | None
    """None: none was periodic."""
    alert: Alert | None
    storage_troubles: tuple[StorageTrouble, ...]
    """Tiers that agents of the newest attempt found full or out of reach, and not well again since."""
    slow_nodes: tuple[SlowNow, ...]
    """None once a save is committed again."""
    restores: tuple[Restore, ...]
    generations: tuple[Generation, ...]
    incidents: tuple[Incident, ...]
    """Over all generations, oldest first."""
    goodput: Goodput | None
    """None before anything was logged."""
    cost: Cost | None
    """None where the machines have no price, as in a local run."""
    notice_sources: dict[int, tuple[str, ...]]
    """By node of the newest generation: where it learns that its machine will be taken away; none before it told."""
    skipped_steps: int
    samples: tuple[Sample, ...]
    startup: tuple[Phase, ...]
    timeline: tuple[Moment, ...]
