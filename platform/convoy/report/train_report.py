"""What is known of a training job: the plain data that pages, terminal and JSON show.

Durations are in seconds, times in Unix seconds, sizes in bytes, losses in nats per token.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from convoy.report.stats import Spread


class Fact(BaseModel):
    """What all parts of the report share."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")


class FirstCause(Fact):
    """The first worker of a generation that ended otherwise than with success."""

    t: float
    generation: int
    node: int
    rank: int
    exit_code: int | None
    signal: str | None
    reason: str
    log_tail: str


class Outcome(Fact):
    """How the newest generation stands."""

    state: Literal["running", "finished", "stopped", "failed"]
    reason: str = ""
    """Why it stopped: the reason all ranks agreed on, and its detail."""
    cause: FirstCause | None = None
    """Of a failure; None where no worker's end was seen."""


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
    """data, forward, backward, optimizer (with clipping), exchange, other."""


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
    """A commit of the living branch."""

    step: int
    generation: int
    bytes: int
    seconds: float


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
    nodes: int
    world_size: int
    parent_generation: int | None
    parent_step: int | None
    why: str
    started: float
    seconds: float
    """From its first event to its last."""
    last_step: int
    outcome: Literal["running", "finished", "stopped", "failed", "ended without a word"]


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
    tone: Literal["plain", "good", "warning", "bad"] = "plain"


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


class TrainReport(Fact):
    """A job as its event log tells it."""

    outcome: Outcome
    started: float | None
    last_event: float | None
    wall_seconds: float
    """Gang time: the sum of the generations' spans, without the pauses between them."""
    step: int
    """Steps done on the living branch."""
    target_steps: int | None
    eta_seconds: float | None
    """By the mean pace of the newest steps, evaluations and checkpoints included; None unless running."""
    pace_steps: int
    """Steps over which that pace was taken."""
    model: Model | None
    hardware: Hardware | None
    steps: tuple[Step, ...]
    validations: tuple[Validation, ...]
    warmup_steps: int
    """Steps left out at the start of each generation in the figures below."""
    measured_world_size: int | None
    """Ranks of the generations whose steps those figures hold."""
    tokens_per_second: Spread | None
    """Of the whole gang while stepping: checkpoints and evaluations are not in it."""
    step_time: StepTime | None
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
    failed_checkpoints: int
    restores: tuple[Restore, ...]
    generations: tuple[Generation, ...]
    skipped_steps: int
    samples: tuple[Sample, ...]
    startup: tuple[Phase, ...]
    timeline: tuple[Moment, ...]
