"""Events of a gang: how it was formed and ended, what failed, its storage, and notices of a machine's end."""

from datetime import date
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from convoy.config.train import ParamDtype
from convoy.job.events.event import Event
from convoy.storage.usage import BucketRequests


class FileSystemRent(BaseModel):
    """A file system that exists for as long as the job, by the price that was known when its run began."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    gib: int
    mb_per_second_per_tib: int
    """Throughput class, in 10^6 bytes."""
    usd_per_gib_month: float | None = None
    """US dollars; None: not known."""
    price_date: date | None = None
    source: str = ""

    @property
    def name(self) -> str:
        """Size and throughput class."""
        return f"FSx for Lustre, {self.gib:,} GiB with {self.mb_per_second_per_tib} MB/s a TiB"


class Rent(BaseModel):
    """How a machine was bought, by the prices that were known when its run began."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    instance: str
    """E.g. `p4d.24xlarge`."""
    market: str
    """on_demand, spot, capacity_block or reserved."""
    region: str
    usd_per_hour: float | None = None
    """US dollars for the machine and hour; None: not known."""
    price_date: date | None = None
    """Day on which the price was observed."""
    source: str = ""
    usd_per_hour_on_demand: float | None = None
    """What the same machine costs on demand there; None: not known."""
    on_demand_date: date | None = None
    """Day on which that was observed."""
    on_demand_source: str = ""
    file_system: FileSystemRent | None = None
    """The job's, which is the same for all of its machines; None: none that is counted."""


class ParamDtypeChoice(BaseModel):
    """How `train.param_dtype: auto` was decided for a new job, on node 0's machine."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    param_dtype: ParamDtype
    device: str
    flops: dict[ParamDtype, float] = {}
    """Operations/s of one rank in products of the job's matrix sizes, by type; empty on a GPU, where bf16 is chosen
    without a measurement."""

    def in_words(self) -> str:
        """The type, and what it was chosen by."""
        if not self.flops:
            return f"{self.param_dtype}, as on any GPU"
        rates = ", ".join(f"{rate / 1e9:.3g} GFLOP/s in {dtype}" for dtype, rate in self.flops.items())
        return f"{self.param_dtype}, the faster type here: a rank multiplies the job's matrices at {rates}"


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
    """The commit this generation continues from; None: from the start."""
    host: str = ""
    tiers: list[str] = Field(default_factory=list)
    """URIs of the job on each shared tier, in order: the root first."""
    rent: Rent | None = None
    """Of this node's machine; None: it has no price, as this host in a local run."""
    training: str = ""
    """`training_hash` of its configuration; empty: a script, or a log from before it was recorded."""
    param_dtype: ParamDtypeChoice | None = None
    """None: the configuration or an earlier generation of the job settled the type."""


class WorkerReady(Event):
    """A rank reached a point of its start-up."""

    kind: Literal["worker_ready"] = "worker_ready"
    phase: Literal["imported", "connected", "built", "restored", "first_step"]
    seconds: float
    """Since the worker's process began."""


class GangStopped(Event):
    """No worker of this node is left, nor anything that one of them started."""

    kind: Literal["gang_stopped"] = "gang_stopped"
    seconds: float
    """Since they were ordered to end, or were killed."""


class GenerationEnded(Event):
    """The agent of a node saw its workers end."""

    kind: Literal["generation_ended"] = "generation_ended"
    outcome: Literal["finished", "stopped", "failed", "preempted"]
    step: int = 0
    """Steps done; meaningful from node 0."""


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

_HAPPENED: dict[FailureKind, tuple[str, str]] = {
    "exited": ("failed", ""),
    "exited_early": ("ended too early", "with success, while the others continued"),
    "stopped": ("was stopped", "by a signal"),
    "hung": ("hung", ""),
    "link_lost": ("lost its connection", "though no peer had failed"),
    "unfit": ("is not fit to train", "another machine may be"),
    "node_gone": ("was lost", "its agent ended without a word"),
    "node_silent": ("was lost", "nothing more was heard of it"),
    "cut_off": ("was cut off", "it heard no other node any more"),
    "agent_failed": ("could not continue", ""),
}
"""What became of it in a few words, and in a few more."""


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
    """Why the gang does not resume in place, where the cause alone does not say."""


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
    """A node that the others wait for (agent of node 0); written when that begins, and with share 0 when it ends."""

    kind: Literal["slow_node"] = "slow_node"
    slow_node: int
    share: float
    """Of the others' time, that they wait for this node."""
    seconds: float
    """Over which that was seen."""


class FirstCause(BaseModel):
    """What failed first in a generation."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    t: float
    generation: int
    kind: FailureKind = "exited"
    node: int
    rank: int | None
    """None: the node as a whole."""
    exit_code: int | None
    signal: str | None
    reason: str
    log_tail: str


def first_cause(e: FailureDetected) -> FirstCause:
    """As the report keeps it."""
    return FirstCause(
        t=e.t, generation=e.generation, kind=e.cause, node=e.failed_node, rank=e.worker, exit_code=e.exit_code,
        signal=e.signal, reason=e.reason, log_tail=e.log_tail,
    )  # fmt: skip


def cause_subject(cause: FirstCause) -> str:
    """What failed, e.g. `rank 3 on node 1` or `node 1`."""
    return f"node {cause.node}" if cause.rank is None else f"rank {cause.rank} on node {cause.node}"


def cause_verb(cause: FirstCause) -> str:
    """What became of it, e.g. `failed` or `was cut off`."""
    return _HAPPENED[cause.kind][0]


def cause_details(cause: FirstCause) -> str:
    """The same more exactly, e.g. `killed by SIGKILL`; empty where there is no more to say."""
    return exit_words(cause) if cause.kind == "exited" else _HAPPENED[cause.kind][1]


def cause_in_words(cause: FirstCause) -> str:
    """In one line, e.g. `rank 3 on node 1 exited with code 1: ValueError: no`."""
    return f"{cause_subject(cause)} {_full_verb(cause)}" + (f": {cause.reason}" if cause.reason else "")


def _full_verb(cause: FirstCause) -> str:
    if cause.kind == "exited" and cause.signal:
        return f"was killed by {cause.signal}"
    if cause.kind == "exited":
        return "failed" if cause.exit_code is None else f"exited with code {cause.exit_code}"
    return ", ".join(filter(None, _HAPPENED[cause.kind]))


def exit_words(exited: WorkerExited | FirstCause) -> str:
    """How a worker ended: its signal, or its exit code."""
    if exited.signal:
        return f"killed by {exited.signal}"
    if exited.exit_code is not None:
        return f"exit code {exited.exit_code}"
    return "its exit code is unknown"


INTERRUPT = "interrupt"
"""The source of a notice that came from whoever started the run: Ctrl-C, a closed terminal, the end of its launcher."""


class StorageBad(Event):
    """A tier did not write and return a few bytes in time (the agent's probe). Training continues."""

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


class StoreRequests(BucketRequests, Event):
    """What the writer's process requested from one bucket since its last such event; written at most every minute, and
    at the end. A process that is killed does not write its last ones."""

    kind: Literal["store_requests"] = "store_requests"


class EventsDropped(Event):
    """Events before this one were lost: the storage was away for so long that too many waited for it."""

    kind: Literal["events_dropped"] = "events_dropped"
    events: int
    """How many, of this writer."""


class NoticeSources(Event):
    """Where this node can learn ahead that its machine will be reclaimed; written once, after the first round of
    questions. A signal, or a person's wish, is always heard, and not among them. A machine of one's own
    that has none does not write it."""

    kind: Literal["notice_sources"] = "notice_sources"
    answering: list[str]


class NoticeReceived(Event):
    """A notice that a machine will be reclaimed, or may be, and what the gang does about it."""

    kind: Literal["notice_seen"] = "notice_seen"
    source: str
    notice: Literal["end", "rebalance"]
    action: Literal["none", "save", "save_and_end", "end"]
    deadline: float | None = None
    """Unix time at which the machine goes."""
    text: str = ""
