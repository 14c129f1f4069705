"""For a script that runs under `@convoy_gang`: it reports progress and receives notices. Imports no torch.

One line does all of it: `ConvoyCallback` in `convoy.script.transformers` and `convoy.script.lightning`, or `Loop` in
`convoy.script.loop` for loops of your own. By hand:

    from convoy import script

    for step in range(first, steps):
        train_one_step()
        script.progress(step + 1)
        notice = script.notice()
        if notice in ("save", "save_and_end") or (step + 1) % 100 == 0:
            save(script.checkpoints_uri(), step + 1)
        if notice in ("save_and_end", "end"):
            break

All ranks call `progress` and `notice`, at the same points. A script that calls none of this is supervised too: its end,
or a stop by a signal, is noticed; a hang is not. Outside of a gang, as under `python` or `torchrun`, nothing is
reported and no notice is received.
"""

import sys
from contextlib import ExitStack
from typing import Any, Literal

from convoy.config.checkpoint import StoreConfig
from convoy.gang.workers.board import ORDERS_BY_STRENGTH, OrderKind
from convoy.gang.workers.script_channel import ScriptChannel, Value

__all__ = ["checkpoints_uri", "event", "in_gang", "notice", "progress", "store_config"]

Notice = Literal["save", "save_and_end", "end"]

_channel: ScriptChannel | None = None
"""This process's, if it is a gang's worker."""

_beat = ExitStack()
"""Holds the heartbeat thread, once the script has reported progress."""

_control: tuple[object, Any] | None = None
"""The default process group, and the group made for it in which ranks agree on notices."""


def progress(step: int) -> None:
    """`step` steps are done, on this rank. Costs microseconds.

    From the first call on, a rank that does not reach the next one counts as hung, after the longer of `hang_seconds`
    of `current.convoy.run` and 4.5 times the 99th percentile of its steps.

    On GPUs of several hosts some of the first calls read NCCL's log. They raise NetworkRequirementError where it shows
    another network than `cluster.require_network`; a script that does not catch it ends its attempt.
    """
    if _channel is None:
        return
    if not _channel.steps:
        from convoy.gang.workers.board import heartbeat

        _beat.enter_context(heartbeat(_channel.marker))
    _channel.report_progress(step)


def notice() -> Notice | None:
    """What the gang is to do because a machine will be reclaimed, or may be; None: nothing.

    `save`: save the state, and continue. `save_and_end`: save the state, then end; there is time for it. `end`: end at
    once, without saving. A script that then returns with success ends the attempt as preempted, and a later one
    resumes.

    Where torch's default process group exists, all ranks must call it at the same point, and all get the same answer:
    the strongest order of any node's agent. It costs one all-reduce of four bytes over gloo.
    """
    if _channel is None:
        return None
    kind = _agree_on_order(_channel.poll_order())
    _channel.set_agreed_order(kind)
    return None if kind == "none" else kind


def event(name: str, /, **values: Value) -> None:
    """Append to the job's event log, which its card and `convoy tail` show. Raises pydantic.ValidationError for values
    other than numbers, text, booleans or None."""
    if _channel is not None:
        _channel.log_event(name, values)


def checkpoints_uri(default: str = "checkpoints") -> str:
    """Where to put the script's checkpoints: below the job, the same in all its attempts and runs.

    A path, `s3://bucket/prefix` or `gs://bucket/prefix`, as `convoy.checkpoint.Checkpoints` takes it. default: outside
    of a gang.
    """
    return default if _channel is None else _channel.checkpoints_uri


def store_config() -> StoreConfig:
    """How `checkpoint.store` of the gang's configuration says that the storage is reached."""
    return StoreConfig() if _channel is None else _channel.store_config


def in_gang() -> bool:
    """Whether this process is a gang's worker."""
    return _channel is not None


def attach(channel: ScriptChannel | None) -> None:
    """For the process that runs the script: from now on it is a gang's worker, or no longer one."""
    global _channel
    _channel = channel


def _agree_on_order(own: OrderKind) -> OrderKind:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return own
    value = sys.modules["torch"].tensor(ORDERS_BY_STRENGTH.index(own), device="cpu")
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=_notice_group(dist))
    return ORDERS_BY_STRENGTH[int(value)]


def _notice_group(dist: Any) -> Any:
    """A gloo group of its own, so that decisions neither wait for training traffic nor mix with it."""
    global _control
    if _control is None or _control[0] is not dist.group.WORLD:
        _control = dist.group.WORLD, dist.new_group(backend="gloo")
    return _control[1]
