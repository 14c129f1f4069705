"""What the ranks of an opened store tell each other when they save, and what follows from it: the same on each.

A rank settles its saves whenever it learns of them. So by the time that a save begins its own queue may know more than
it has told: what all ranks must do alike follows from what was told alone.
"""

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

from convoy.checkpoint.save.post_commit import Busy
from convoy.checkpoint.save.queue import MOST


@dataclass(frozen=True)
class View:
    """What a rank tells the others of its saves."""

    under_way: dict[int, int] = field(default_factory=dict)
    """Tiers that each has failed on, by number: how far it has moved on from the one that it began on."""
    steps: dict[int, int] = field(default_factory=dict)
    """Their steps, by number."""
    settled: dict[int, str | None] = field(default_factory=dict)
    """The newest ones by number, with the error; None: committed."""
    newest: int = 0
    """Step of the newest commit that was made here."""
    first_tier: int = 0
    """Tier that the next save should begin on."""
    busy: Busy = field(default_factory=Busy)
    """What this rank has not ended of what it does between saves."""
    superseded: str | None = None


@dataclass(frozen=True)
class Agreed:
    """What follows from the views of all ranks."""

    steps: frozenset[int] = frozenset()
    """Of the saves that no rank has settled."""
    newest: int = 0
    """Step of the newest commit that any rank knows to have been made here."""
    first_tier: int = 0
    """Tier that the next save begins on: not on the first one while any rank knows that it takes nothing."""
    busy: Busy = field(default_factory=Busy)
    """What some rank still does for earlier commits, and so no rank for the next one."""
    superseded: str | None = None
    """Why no save of this session counts any more."""

    @property
    def may_add(self) -> bool:
        """Whether every rank has a free buffer, once it has settled what another one has."""
        return len(self.steps) < MOST


def agreed(views: Sequence[View]) -> Agreed:
    settled = {number for view in views for number in view.settled}
    steps = {step for view in views for number, step in view.steps.items() if number not in settled}
    return Agreed(
        steps=frozenset(steps),
        newest=max(view.newest for view in views),
        first_tier=max(view.first_tier for view in views),
        busy=functools.reduce(operator.or_, (view.busy for view in views)),
        superseded=next((view.superseded for view in views if view.superseded), None),
    )
