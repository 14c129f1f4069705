"""For a script that runs under `@convoy_gang`: it tells how far it is, and hears of notices. Imports no torch.

    from convoy import script

    for step in range(first, steps):
        train_one_step()
        script.progress(step + 1)
        told = script.notice()
        if told in ("save", "save_and_end") or (step + 1) % 100 == 0:
            save(script.checkpoints_uri(), step + 1)
        if told in ("save_and_end", "end"):
            break

All ranks call `progress` and `notice`, at the same points. A script that calls none of this is supervised too: that it
ends, or is stopped by a signal, is seen; that it hangs is not. Outside of a gang, as under `python` or `torchrun`,
nothing is told and nothing is heard.
"""

import sys
from contextlib import ExitStack
from typing import Any, Literal

from convoy.gang.workers.board import OrderKind
from convoy.gang.workers.script_channel import ScriptLink, Value

__all__ = ["checkpoints_uri", "event", "notice", "progress"]

Notice = Literal["save", "save_and_end", "end"]

_STRENGTH: tuple[OrderKind, ...] = ("none", "save", "save_and_end", "end")

_link: ScriptLink | None = None
"""Of this process, where it is a gang's worker."""

_beat = ExitStack()
"""Holds the thread that tells that Python runs here, once the script has told how far it is."""

_control: tuple[object, Any] | None = None
"""The process group that notices are agreed in, and the default group that it was made beside."""


def progress(step: int) -> None:
    """`step` steps are done, on this rank. Costs microseconds.

    From the first call on, a rank that does not come to the next one is taken to hang, after the longer of
    `hang_seconds` of `current.convoy.run` and 4.5 times what 99 of 100 steps took.
    """
    if _link is None:
        return
    if not _link.steps:
        from convoy.gang.workers.liveness import beating

        _beat.enter_context(beating(_link.marker))
    _link.progress(step)


def notice() -> Notice | None:
    """What the gang is to do because a machine will be taken away, or may be; None: nothing.

    `save`: the state, and go on. `save_and_end`: the state, then end; there is time for it. `end`: at once, on what is
    saved. Whoever then returns with success ends the attempt as preempted, and a later one goes on.

    Where torch's default process group exists, all ranks must call it at the same point, and all are told the same:
    the strongest of what any rank's node has heard. It costs one all-reduce of four bytes over gloo.
    """
    if _link is None:
        return None
    kind = _agreed(_link.ordered())
    _link.heard(kind)
    return None if kind == "none" else kind


def event(name: str, /, **values: Value) -> None:
    """Put something into the job's event log, which its card and `convoy tail` show. Raises pydantic.ValidationError
    for values that are no numbers, text, booleans or None."""
    if _link is not None:
        _link.event(name, values)


def checkpoints_uri(default: str = "checkpoints") -> str:
    """Where the script's checkpoints belong: below the job, the same in all its attempts and runs.

    A path, or `s3://bucket/prefix`, as `convoy.checkpoint.Checkpoints` takes it. default: outside of a gang.
    """
    return default if _link is None else _link.checkpoints_uri


def attach(link: ScriptLink | None) -> None:
    """For the process that runs the script: from now on it is a gang's worker, or no more."""
    global _link
    _link = link


def _agreed(own: OrderKind) -> OrderKind:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return own
    value = sys.modules["torch"].tensor(_STRENGTH.index(own), device="cpu")
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=_group(dist))
    return _STRENGTH[int(value)]


def _group(dist: Any) -> Any:
    """A gloo group of its own, so that decisions neither wait for training traffic nor mix with it."""
    global _control
    if _control is None or _control[0] is not dist.group.WORLD:
        _control = dist.group.WORLD, dist.new_group(backend="gloo")
    return _control[1]
