"""Which messages about a job were sent: each moment is marked in the job's store, for all attempts, runs and processes.

A message is claimed before it is sent and marked as sent after that, both by objects that are created only if absent.
Who finds a claim without a mark cannot know whether the message went out before its sender died: it sends the message
a second time, and never a third time. So a process killed in between repeats a message at most once, and loses none.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from convoy.storage import ObjectMissing, Store

CLAIMS = 2
"""So often a message may be sent, where nobody marked the time before."""

SINCE = "notified/since"
"""Generation with which notifications of the job began."""


@dataclass(frozen=True)
class Claim:
    """The right to send a message now."""

    moment: str
    number: int

    @property
    def name(self) -> str:
        return f"notified/{self.moment}.{self.number}"


def claim(store: Store, moment: str, lease_seconds: float) -> Claim | Literal["sent", "claimed"]:
    """Claim a message. `sent`: it is marked as sent, or was claimed as often as it may be. `claimed`: somebody may be
    sending it just now.

    lease_seconds: sending takes less; a claim that is older, by the store's clock, is of a sender that died. Raises
    StoreUnavailable.
    """
    there = store.listing(f"notified/{moment}.")
    if f"notified/{moment}.sent" in there:
        return "sent"
    for number in range(1, CLAIMS + 1):
        wanted = Claim(moment, number)
        if wanted.name not in there:
            return wanted if store.create(wanted.name, str(time.time()).encode()) else "claimed"
        if store.now() - there[wanted.name].modified < lease_seconds:
            return "claimed"
    return "sent"


def mark_sent(store: Store, moment: str) -> None:
    """Nobody sends it again. Raises StoreUnavailable."""
    store.create(f"notified/{moment}.sent", str(time.time()).encode())


def give_back(store: Store, claimed: Claim) -> None:
    """The target refused the message: it can be claimed again at once. Raises StoreUnavailable."""
    store.delete(claimed.name)


def begin(store: Store, generation: Callable[[], int]) -> int:
    """The generation with which the job's notifications began, which is this one if none had. Raises
    StoreUnavailable."""
    with contextlib.suppress(ObjectMissing):
        return int(store.read(SINCE))
    number = generation()
    return number if store.create(SINCE, str(number).encode()) else int(store.read(SINCE))
