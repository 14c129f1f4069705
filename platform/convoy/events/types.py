"""Every kind of event. An event is a fact that was seen; nothing in the log is ever changed.

Common fields: `t` Unix time in seconds, `generation` and `node` of the writer, `rank` of a worker (None: the agent).
Durations are in seconds, sizes in bytes. Losses are nats per token.
"""

import math
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

PEER_LOST = 70
"""Exit code of a worker that failed because another rank was gone: a consequence, never the first cause."""

OUTAGE = 75
"""Exit code of a worker for which the store was out of reach: nothing is wrong with the job, and it passes."""

UNFIT = 69
"""Exit code of a worker whose machine is not fit to train: another one may be."""

FailureKind = Literal[
    "exited", "exited_early", "stopped", "hung", "link_lost", "unfit", "node_gone", "node_silent", "cut_off",
    "agent_failed",
]  # fmt: skip
"""What failed first: a worker (ended, ended with success while others went on, stopped by a signal, hung, lost its
connection though no peer had failed, found its machine unfit) or a node (its agent gone, silent, cut off from all
others, failed itself)."""


class Event(BaseModel):
    """What all events carry."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    t: float = 0.0
    generation: int = 0
    node: int = 0
    rank: int | None = None


class Rent(BaseModel):
    """How a machine was bought, by the prices that were known when its run began."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    instance: str
    """E.g. `p4d.24xlarge`."""
    market: str
    """on_demand, spot or capacity_block."""
    region: str
    usd_per_hour: float | None = None
    """US dollars for the machine and hour; None: not known."""
    price_date: date | None = None
    """Day on which the price was observed."""
    source: str = ""
    usd_per_hour_on_demand: float | None = None
    """What the same machine costs on demand there; None: not known."""


class GenerationStarted(Event):
    """An agent formed or joined the gang of a generation. Only node 0's carries the run's facts."""

    kind: Literal["generation_started"] = "generation_started"
    run: str = ""
    """Metaflow pathspec, e.g. `TrainFlow/123`."""
    attempt: int = 0
    nodes: int = 1
    world_size: int = 1
    parent_generation: int | None = None
    parent_step: int | None = None
    """The commit this generation goes on from; None: from the start."""
    host: str = ""
    tiers: list[str] = Field(default_factory=list)
    """URIs of the job on each shared tier, in order: the root first."""
    rent: Rent | None = None
    """Of this node's machine; None: it has no price, as this host in a local run."""


class WorkerReady(Event):
    """A rank reached a point of its start-up."""

    kind: Literal["worker_ready"] = "worker_ready"
    phase: Literal["imported", "connected", "built", "restored", "first_step"]
    seconds: float
    """Since the worker's process began."""


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


class ModelBuilt(Event):
    """The model as it trains (rank 0)."""

    kind: Literal["model_built"] = "model_built"
    name: str
    parameters: int
    flops_per_token: float | None
    """Forward and backward, without recomputation; None for a custom module."""
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
    """Waiting for what all ranks tell each other in a step: tokens and decisions, the gradient norm, the loss."""
    skipped: bool = False
    """Loss or gradient was not finite; the update was not applied."""


class RankThroughput(Event):
    """What one rank did since its last such event."""

    kind: Literal["rank_throughput"] = "rank_throughput"
    step: int
    tokens: int
    seconds: float
    waited_seconds: float = 0.0
    """Part of them in which it waited for other ranks."""


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


class CheckpointSaved(Event):
    """A commit exists; told when the gang learns of it, at the end of a step (rank 0)."""

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
    """A save was not committed; the commit before it stands and training goes on (rank 0)."""

    kind: Literal["checkpoint_failed"] = "checkpoint_failed"
    step: int
    error: str
    tier: str = ""
    """URI of the job where it was to be."""
    retried_on: str | None = None
    """URI of the job on the tier that gets the same state now; None: given up."""


class CheckpointAlert(Event):
    """So many saves in a row were given up that a person should look (rank 0)."""

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


class WorkerExited(Event):
    """A worker process ended otherwise than with success (agent)."""

    kind: Literal["worker_exited"] = "worker_exited"
    worker: int
    """Its rank."""
    exit_code: int | None = None
    signal: str | None = None
    reason: str = ""
    """One line: the worker's last error, where it left one."""
    log_tail: str = ""
    """Its last lines of output."""


class PeerSuspected(Event):
    """An agent heard nothing of another one for longer than chance explains."""

    kind: Literal["peer_suspected"] = "peer_suspected"
    peer: int
    """Its node."""
    seconds: float
    """Since it was last heard."""
    phi: float
    """Level of suspicion: that so long a silence is chance has probability 10^-phi."""


class FailureDetected(Event):
    """The first cause of a generation's end, and what follows (the agent of node 0; any agent that ends by itself)."""

    kind: Literal["failure_detected"] = "failure_detected"
    cause: FailureKind
    failed_node: int
    worker: int | None = None
    """Its rank; None: the node as a whole."""
    exit_code: int | None = None
    signal: str | None = None
    reason: str = ""
    """One line: the worker's last error, or what was seen of the node."""
    log_tail: str = ""
    """The worker's last lines of output."""
    step: int = 0
    """Steps it had done, as far as is known."""
    silent_seconds: float = 0.0
    """Since its last sign of life: the end of the process, the last progress of a worker that hangs, the last beat."""
    action: Literal["restart", "end"] = "end"
    """Form the next generation in place, or end this attempt."""
    retryable: bool = True
    """Another attempt may do better."""
    why: str = ""
    """Why the gang does not go on in place, where the cause alone does not tell."""


class GangStopped(Event):
    """No worker of this node is left, nor anything that one of them started."""

    kind: Literal["gang_stopped"] = "gang_stopped"
    seconds: float
    """Since they were told to end, or were killed."""


class StorageBad(Event):
    """A tier did not take and give back a few bytes in time (the agent's probe). Training goes on."""

    kind: Literal["storage_bad"] = "storage_bad"
    tier: str
    """URI of the job there."""
    problem: str
    """In one line, such as `No space left on device` or `no answer for 2.1 s`."""
    seconds: float
    """For which it had been asked."""


class StorageGood(Event):
    """A tier that was bad takes and gives bytes again."""

    kind: Literal["storage_good"] = "storage_good"
    tier: str
    seconds: float
    """For which it was bad."""


class NodeChecked(Event):
    """What a rank can do alone, measured before the first step while all ranks did the same."""

    kind: Literal["node_checked"] = "node_checked"
    seconds: float
    """That the check took."""
    matmul_tflops: float | None = None
    """Best of several; None: not measured."""
    link_bytes_per_second: float | None = None
    """Best of the exchanges with either neighbour, as in a ring; None: there is no other rank."""
    problem: str = ""
    """Why this rank is not fit to train; empty: it is."""


class SlowNode(Event):
    """A node that the others wait for (agent of node 0); told when it begins, and with a share of 0 when it is over."""

    kind: Literal["slow_node"] = "slow_node"
    slow_node: int
    share: float
    """Of the others' time, that they wait for this node."""
    seconds: float
    """Over which that was seen."""


class NoticeSources(Event):
    """Where this node can learn ahead that its machine will be taken away; told once, after the first round of
    questions. A SIGTERM, or a person's wish, is always heard, and not among them."""

    kind: Literal["notice_sources"] = "notice_sources"
    answering: list[str]


class NoticeSeen(Event):
    """A notice that a machine will be taken away, or may be, and what the gang does about it."""

    kind: Literal["notice_seen"] = "notice_seen"
    source: str
    notice: Literal["end", "rebalance"]
    action: Literal["none", "save", "save_and_end", "end"]
    deadline: float | None = None
    """Unix time at which the machine goes."""
    text: str = ""


class Stopping(Event):
    """All ranks agreed to end before the last step (rank 0)."""

    kind: Literal["stopping"] = "stopping"
    step: int
    reason: Literal["max_hours", "max_cost_usd", "nonfinite", "requested", "preempted", "preempted_unsaved"]
    detail: str = ""


class ScriptResumed(Event):
    """A user's script told of its first step in this generation: it goes on from the one before (rank 0)."""

    kind: Literal["script_resumed"] = "script_resumed"
    step: int


class ScriptStep(Event):
    """How far a user's script is; not each step is told (rank 0)."""

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
        return {name: _written(value) for name, value in values.items()}


class StoreRequests(Event):
    """What the writer's process asked of one bucket since its last such event; told at most every minute, and at the
    end. A process that is killed does not tell its last ones."""

    kind: Literal["store_requests"] = "store_requests"
    bucket: str
    region: str | None = None
    """Of the bucket; None: not known."""
    puts: int = 0
    """PUT, COPY, POST and LIST; each try counts."""
    gets: int = 0
    """All others but DELETE, which is free."""
    sent_bytes: int = 0
    received_bytes: int = 0


class EventsDropped(Event):
    """Events before this one were lost: the storage was away for so long that too many waited for it."""

    kind: Literal["events_dropped"] = "events_dropped"
    events: int
    """How many, of this writer."""


class GenerationEnded(Event):
    """The agent of a node saw its workers end."""

    kind: Literal["generation_ended"] = "generation_ended"
    outcome: Literal["finished", "stopped", "failed", "preempted"]
    step: int = 0
    """Steps done; meaningful from node 0."""


AnyEvent = Annotated[
    GenerationStarted
    | WorkerReady
    | Environment
    | ModelBuilt
    | StepDone
    | RankThroughput
    | Evaluated
    | SampleText
    | CheckpointSaved
    | CheckpointSkipped
    | CheckpointFailed
    | CheckpointAlert
    | CheckpointDamaged
    | CheckpointVerified
    | CheckpointMisread
    | CheckpointCopied
    | CheckpointsPruned
    | Restored
    | ExportFailed
    | MemoryPeak
    | WorkerExited
    | PeerSuspected
    | FailureDetected
    | GangStopped
    | StorageBad
    | StorageGood
    | NodeChecked
    | SlowNode
    | NoticeSources
    | NoticeSeen
    | Stopping
    | ScriptResumed
    | ScriptStep
    | ScriptEvent
    | StoreRequests
    | EventsDropped
    | GenerationEnded,
    Field(discriminator="kind"),
]

_ADAPTER: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


def _written(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def encode(event: Event) -> bytes:
    """One JSON line, without the newline. Non-finite numbers are written as strings."""
    return event.model_dump_json().encode()


def decode(line: bytes) -> AnyEvent:
    """The event of one line. Raises pydantic.ValidationError for what no version of Convoy wrote."""
    return _ADAPTER.validate_json(line)
