"""What an opened store has restored: the generation of its first save goes on from there, not from what is newest."""

import contextlib
from collections.abc import Sequence

from convoy.checkpoint.restore.load import Restored
from convoy.checkpoint.save.commit_lookup import in_thread
from convoy.job.generations import Origin
from convoy.job.leases import lease
from convoy.storage import Store, StoreUnavailable

PATIENCE_SECONDS = 2.0
"""For giving the lease back; where that takes longer it is left to expire."""


class KeptOrigin:
    """On the rank that forms the generation. The commit is not pruned as long as it is kept here."""

    def __init__(self) -> None:
        self.origin: Origin | None = None
        """None: nothing was restored since the last generation was formed."""
        self._held: contextlib.ExitStack | None = None

    def keep(self, newest: int, restored: Restored | None, tiers: Sequence[Store]) -> None:
        """newest: number of the newest generation when the restore began. restored: None where there was no commit."""
        self.drop()
        self.origin = Origin(restored.commit.ref if restored else None, newest)
        if restored is not None:
            # A store may be read-only; whether the commit is still there is looked at again when it becomes a parent.
            with contextlib.suppress(StoreUnavailable), contextlib.ExitStack() as held:
                held.enter_context(lease(tiers[restored.tier], restored.commit.ref))
                self._held = held.pop_all()

    def drop(self) -> None:
        """A generation names the commit, or it is of no use any more. A store that hangs is not waited for."""
        held, self._held, self.origin = self._held, None, None
        if held is not None:
            with contextlib.suppress(TimeoutError):
                in_thread("give a lease back", held.close).result(PATIENCE_SECONDS)
