"""Events of training and its checkpoints: what trains and on what, its steps, what is saved, and why it ends."""

import math
from typing import Any, Literal

from pydantic import Field, field_validator

from convoy.catalog.measured_machine import MeasuredMachine
from convoy.job.events.event import Event


class Environment(Event):
    """Versions and hardware of a rank, once per generation."""

    kind: Literal["environment"] = "environment"
    versions: dict[str, str]
    device: str
    """What computes, e.g. `NVIDIA H100 80GB HBM3` or the CPU's model name."""
    threads: int
    matmul_tflops: float | None = None
    """Matmul rate of one rank, all ranks busy at once; measured at start in the compute dtype; None: not measured."""
    peak_tflops: float | None = None
    """Dense peak of the GPU in the compute dtype; None: not known, then there is no MFU."""
    machine: MeasuredMachine | None = None
    """Measured after the first step of a job that does not go on from another generation, all ranks at once; None: not
    measured."""
    engine: str = ""
    """What trains, with its version, e.g. `DeepSpeed ZeRO-2 0.19.8`; empty: Convoy's own engine."""


class NetworkProof(Event):
    """What carried a GPU rank's traffic between hosts in its first steps, by NCCL's log and the adapters' counters."""

    kind: Literal["network_proof"] = "network_proof"
    verdict: Literal["rdma+gdr", "rdma", "tcp", "harmless", "unknown"]
    carrier: str | None = None
    """`efa`, `ib`, another provider of libfabric, or `socket`."""
    why: str = ""
    cause: str | None = None
    """The first cause of a verdict that could be better."""
    fix: str | None = None
    nccl: str | None = None
    plugin: str | None = None
    """Version of aws-ofi-nccl."""
    provider: str | None = None
    """Of libfabric."""
    network: str | None = None
    """Its name in NCCL."""
    nics: int | None = None
    paths: dict[str, int] = {}
    """Channels by path, such as `NET/IB/GDRDMA`."""
    adapter_bytes: int | None = None
    """Sent by the host's RDMA adapters from before the first communicator until the log was read, for all of its
    processes; None: it has none, or they do not count."""


class ModelBuilt(Event):
    """The model as it trains (rank 0)."""

    kind: Literal["model_built"] = "model_built"
    name: str
    parameters: int
    flops_per_token: float | None
    """Forward and backward, without recomputation; None where it is not known, as for some custom modules."""
    unit: str = "tokens"
    """What `tokens` of this and other events count: tokens, or the samples of a user's dataset as it calls them."""
    sharded_bytes: int = 0
    """Parameter bytes of rank 0's shards."""


class StepDone(Event):
    """One optimizer step (rank 0). Seconds are rank 0's wall time."""

    kind: Literal["step"] = "step"
    step: int
    """Steps done, this one included."""
    loss: float
    """Over all the tokens of the global batch."""
    grad_norm: float
    """Before clipping, over all ranks."""
    lr: float
    tokens: int
    """Of the global batch."""
    seconds: float
    data_seconds: float = 0.0
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    optimizer_seconds: float = 0.0
    """Of its own: the norm of its part of the gradients, clipping and update."""
    exchange_seconds: float = 0.0
    """Waiting for what all ranks exchange in a step: tokens and decisions, the gradient norm, the loss."""
    skipped: bool = False
    """Loss or gradient was not finite; the update was not applied."""


class RankThroughput(Event):
    """What one rank did since its last such event."""

    kind: Literal["rank_throughput"] = "rank_throughput"
    step: int
    tokens: int
    seconds: float
    waited_seconds: float = 0.0
    """Part of them in which it waited for other ranks, without the generation's first step, which ends its start."""


class Evaluated(Event):
    """Loss on the held-out split (rank 0)."""

    kind: Literal["evaluated"] = "evaluated"
    step: int
    loss: float
    bits_per_byte: float | None
    """None where tokens have no bytes (synthetic tokens, ready-made shards)."""
    tokens: int
    seconds: float


class SampleText(Event):
    """Text the model generated (rank 0)."""

    kind: Literal["sample_text"] = "sample_text"
    step: int
    prompt: str
    text: str
    """The continuation, without the prompt."""


class ExportFailed(Event):
    """The last commit was not exported as a model; the job is trained and committed all the same (rank 0)."""

    kind: Literal["export_failed"] = "export_failed"
    step: int
    error: str


class MemoryPeak(Event):
    """Peak memory of one rank so far: of the GPU where there is one, else resident."""

    kind: Literal["memory_peak"] = "memory_peak"
    step: int
    bytes: int
    device: Literal["cuda", "host"]


class Stopping(Event):
    """All ranks agreed to end before the last step (rank 0)."""

    kind: Literal["stopping"] = "stopping"
    step: int
    reason: Literal["max_hours", "max_cost_usd", "nonfinite", "requested", "preempted", "preempted_unsaved"]
    detail: str = ""


class ScriptResumed(Event):
    """A user's script reported its first step in this generation: it resumes from the one before (rank 0)."""

    kind: Literal["script_resumed"] = "script_resumed"
    step: int


class ScriptStep(Event):
    """How far a user's script is; not each step is recorded (rank 0)."""

    kind: Literal["script_step"] = "script_step"
    step: int
    seconds: float
    """Of a step, on average since the last such event."""


class ScriptEvent(Event):
    """What a user's script wants to be known."""

    kind: Literal["script_event"] = "script_event"
    name: str
    values: dict[str, bool | int | float | str | None] = Field(default_factory=dict)
    """A float that is not finite is the text NaN, Infinity or -Infinity, as it is written."""

    @field_validator("values")
    @classmethod
    def _finite(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: _number_or_text(value) for name, value in values.items()}


class ScriptEndedLate(Event):
    """A rank ended after its script's last line because nothing in it made progress any more (its node's agent)."""

    kind: Literal["script_ended_late"] = "script_ended_late"
    worker: int
    """Its rank."""
    exit_code: int
    """The script's own."""
    seconds: float
    """Since its last progress."""


def _number_or_text(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


class CheckpointSaved(Event):
    """A commit exists; written when the gang learns of it, at the end of a step (rank 0)."""

    kind: Literal["checkpoint_saved"] = "checkpoint_saved"
    step: int
    attempt: str
    bytes: int
    tier: str = ""
    """URI of the job where the commit is."""
    seconds: float
    """For which training stood still: the call, and waiting for what it copies."""
    staged_seconds: float = 0.0
    """From the call until the state was copied aside."""
    committed_seconds: float = 0.0
    """From the call until the commit was known of."""


class CheckpointSkipped(Event):
    """A save that was due did not begin: one was being written, and another waited for it (rank 0)."""

    kind: Literal["checkpoint_skipped"] = "checkpoint_skipped"
    step: int
    under_way: list[int]
    """Steps of the saves that were under way."""


class CheckpointFailed(Event):
    """A save was not committed; the commit before it remains the newest and training continues (rank 0)."""

    kind: Literal["checkpoint_failed"] = "checkpoint_failed"
    step: int
    error: str
    tier: str = ""
    """URI of the job where it was to be."""
    retried_on: str | None = None
    """URI of the job on the tier that gets the same state now; None: given up."""


class CheckpointAlert(Event):
    """So many saves in a row were abandoned that a person should look (rank 0)."""

    kind: Literal["checkpoint_alert"] = "checkpoint_alert"
    step: int
    """Steps done; all after the newest commit would be lost."""
    failures: int
    """In a row."""
    newest: int | None
    """Step of the newest commit; None: there is none."""
    error: str
    """Of the last one."""


class CheckpointDamaged(Event):
    """A commit is not what was written; it is marked on that tier, and never read there again."""

    kind: Literal["checkpoint_damaged"] = "checkpoint_damaged"
    from_generation: int
    """The generation that made the commit."""
    step: int
    tier: str
    error: str
    """What is not as written."""


class CheckpointVerified(Event):
    """A rank read one part of a commit back; with no error every byte was as written."""

    kind: Literal["checkpoint_verified"] = "checkpoint_verified"
    from_generation: int
    step: int
    tier: str
    part: int
    parts: int
    """How many the commit has: it is verified when each one is."""
    seconds: float
    error: str | None = None
    """Why the part could not be read: an outage. Damage has its own event."""


class CheckpointMisread(Event):
    """A host read part of a commit otherwise than it was written, and another host found it whole: nothing is marked.
    Memory, network or a disk cache of that host is at fault."""

    kind: Literal["checkpoint_misread"] = "checkpoint_misread"
    from_generation: int
    step: int
    tier: str
    part: int
    host: str
    """That reads wrongly."""
    error: str


class CheckpointCopied(Event):
    """A commit exists on a further tier too, or `error` says why not (rank 0)."""

    kind: Literal["checkpoint_copied"] = "checkpoint_copied"
    from_generation: int
    step: int
    tier: str
    bytes: int
    seconds: float
    error: str | None = None


class CheckpointsPruned(Event):
    """What retention removed on one tier (rank 0)."""

    kind: Literal["checkpoints_pruned"] = "checkpoints_pruned"
    tier: str
    commits: list[tuple[int, int]]
    """(generation, step) of each."""
    attempts: int = 0
    """Saves without a commit whose files were removed."""
    bytes: int = 0
    error: str | None = None


class Restored(Event):
    """A rank's state came from a commit (rank 0)."""

    kind: Literal["restored"] = "restored"
    from_generation: int
    step: int
    seconds: float
    bytes: int = 0
    """Of the whole commit, every one of them checked by the rank that needed it."""
    tier: str = ""
