"""A notice, what gives one, and what the gang does about it. Pure functions."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from convoy.config.train import NoticesConfig
from convoy.gang.evidence import Evidence
from convoy.gang.workers.board import ORDERS_BY_STRENGTH, OrderKind

SAVE_MARGIN = 1.2
"""A save is assumed to take this many times as long as the newest one. No more: a save that comes too late costs
little, since the commit before it remains, and one that is not tried costs all steps since then."""

FIRST_SAVE_SECONDS = 15.0
"""Assumed length of a save where none was measured yet."""

AGREE_STEPS = 2
"""The step that is under way, and the one at whose end the ranks agree."""

END_SECONDS = 2.0
"""From the commit to the end of the attempt: logs are flushed and processes end."""

_REBALANCE: dict[str, OrderKind] = {"ignore": "none", "save": "save", "drain": "save_and_end"}


@dataclass(frozen=True)
class Notice:
    """A machine will be taken away, or is likely to be, or a person wants the gang to end."""

    source: str
    kind: Literal["end", "rebalance"]
    deadline: float | None
    """Unix time, by this host's clock, after which nothing more can be done; 0: at once; None: there is no hurry."""
    text: str
    """For people. Two notices of a source with the same text are one."""


class NoAnswer(Exception):
    """The source cannot be polled, or did not answer; the text is one line that says why."""


class Source(Protocol):
    """Something that may give notice. Used by one thread at a time."""

    name: str
    foretells: bool
    """It announces that the machine is taken away, which is what people mean by a source of notices."""

    def poll(self) -> Notice | None:
        """The notice, if there is one. May take any time: other sources are polled meanwhile. Raises NoAnswer."""


def order_for(
    notice: Notice, config: NoticesConfig, save_seconds: float, step_seconds: float, now: float, *, unsaved: bool
) -> OrderKind:
    """The order that a notice leads to.

    save_seconds: of the slowest rank's newest save, from the call to the commit; 0: none was measured. step_seconds:
    of the slowest rank's last step; 0: unknown. now: Unix time by the clock of the node that has the notice. unsaved:
    the generation has done something that would be lost, or may have.
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
    """What to do about several notices: the order that ends soonest."""
    return max(orders, key=ORDERS_BY_STRENGTH.index, default="none")


def ending_evidence(notice: Notice, node: int, now: float, wall: float, *, worth_waiting: bool) -> Evidence:
    """What an agent sends the gang about a notice for which the attempt ends.

    now, wall: the same moment by `time.monotonic` and as Unix time. worth_waiting: workers have done something that
    would be lost; otherwise the gang ends at once. The evidence's deadline leaves time to end in good order.
    """
    deadline = None if worth_waiting else now
    if worth_waiting and notice.deadline is not None:
        deadline = now + max(notice.deadline - wall - END_SECONDS, END_SECONDS)
    reason = f"({notice.source}): {notice.text}"
    return Evidence(kind="notice", node=node, by=node, at=now, noticed=now, reason=reason, deadline=deadline)
