"""First causes in words."""

from pydantic import BaseModel, ConfigDict

from convoy.job.events.types import FailureDetected, FailureKind, WorkerExited

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
