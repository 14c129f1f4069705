"""Events of workers and nodes that fail, are suspected, or are slower than the others."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from convoy.job.events.event import Event

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
    "exited_early": ("ended too early", "with success, while the others went on"),
    "stopped": ("was stopped", "by a signal"),
    "hung": ("hung", ""),
    "link_lost": ("lost its connection", "though no peer had failed"),
    "unfit": ("is not fit to train", "another machine may be"),
    "node_gone": ("was lost", "its agent ended without a word"),
    "node_silent": ("was lost", "nothing more was heard of it"),
    "cut_off": ("was cut off", "it heard no other node any more"),
    "agent_failed": ("could not go on", ""),
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


def subject(cause: FirstCause) -> str:
    """What failed, e.g. `rank 3 on node 1` or `node 1`."""
    return f"node {cause.node}" if cause.rank is None else f"rank {cause.rank} on node {cause.node}"


def happened(cause: FirstCause) -> str:
    """What became of it, e.g. `failed` or `was cut off`."""
    return _HAPPENED[cause.kind][0]


def more(cause: FirstCause) -> str:
    """The same more exactly, e.g. `killed by SIGKILL`; empty where there is no more to say."""
    return exit_words(cause) if cause.kind == "exited" else _HAPPENED[cause.kind][1]


def in_words(cause: FirstCause) -> str:
    """In one line, e.g. `rank 3 on node 1 exited with code 1: ValueError: no`."""
    return f"{subject(cause)} {_in_full(cause)}" + (f": {cause.reason}" if cause.reason else "")


def _in_full(cause: FirstCause) -> str:
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
    return "no exit code was seen"
