"""What the gang does about a notice. Pure functions."""

from collections.abc import Iterable

from convoy.config.train import NoticesConfig
from convoy.gang.evidence import Sign
from convoy.gang.notices.notice import Notice
from convoy.gang.workers.board import OrderKind

SAVE_MARGIN = 1.2
"""A save is taken to last so many times as long as the newest one did. No more: one that comes too late costs little,
for the commit before it stands, and one that is not tried costs all steps since then."""

FIRST_SAVE_SECONDS = 15.0
"""What a save is taken to last where none was measured yet."""

AGREE_STEPS = 2
"""The step that is under way, and the one at whose end the ranks agree."""

END_SECONDS = 2.0
"""From the commit to the end of the attempt: logs are flushed and processes end."""

_STRENGTH: tuple[OrderKind, ...] = ("none", "save", "save_and_end", "end")

_REBALANCE: dict[str, OrderKind] = {"ignore": "none", "save": "save", "drain": "save_and_end"}


def decide(
    notice: Notice, config: NoticesConfig, save_seconds: float, step_seconds: float, now: float, *, unsaved: bool
) -> OrderKind:
    """The order that a notice leads to.

    save_seconds: of the slowest rank's newest save, from the call to the commit; 0: none was measured. step_seconds:
    of the slowest rank's last step; 0: not known. now: Unix time by the clock of the node that has the notice.
    unsaved: the generation has done what would be lost, or may have.
    """
    if notice.kind == "rebalance":
        return _REBALANCE[config.rebalance]
    if not unsaved:
        return "end"
    if notice.deadline is None or now + seconds_to_end(save_seconds, step_seconds) <= notice.deadline:
        return "save_and_end"
    return "end"


def seconds_to_end(save_seconds: float, step_seconds: float) -> float:
    """How long it takes until the gang has agreed, saved and ended, with a margin."""
    save = SAVE_MARGIN * save_seconds if save_seconds > 0 else FIRST_SAVE_SECONDS
    return AGREE_STEPS * step_seconds + save + END_SECONDS


def strongest(orders: Iterable[OrderKind]) -> OrderKind:
    """What to do about several notices: what is over soonest."""
    return max(orders, key=_STRENGTH.index, default="none")


def ending_sign(notice: Notice, node: int, now: float, wall: float, *, worth_waiting: bool) -> Sign:
    """What an agent tells the gang of a notice for which the attempt ends.

    now, wall: the same moment by `time.monotonic` and by Unix time. worth_waiting: workers have done what would be
    lost; without it the gang ends at once. The sign's deadline leaves time to end in order.
    """
    deadline = None if worth_waiting else now
    if worth_waiting and notice.deadline is not None:
        deadline = now + max(notice.deadline - wall - END_SECONDS, END_SECONDS)
    reason = f"({notice.source}): {notice.text}"
    return Sign(kind="notice", node=node, by=node, at=now, seen=now, reason=reason, deadline=deadline)
