"""The commits of an opened store, on whichever of its tiers they are, as all ranks read them together."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.group import Ranks
from convoy.checkpoint.restore.load import Candidates, Damage, Restored, patiently, restore
from convoy.checkpoint.verify.gang import verify_together
from convoy.checkpoint.verify.marks import mark_damaged
from convoy.checkpoint.verify.verdicts import Readers
from convoy.job.lineage import CommitRef, History, candidates, lineage, lost, places, read_history
from convoy.storage import Store

log = logging.getLogger("convoy.checkpoint")


class Reading:
    """Errors are those of the functions that are called, the same on all ranks; no commit that counts is a
    CheckpointError."""

    def __init__(self, stores: Sequence[Store], ranks: Ranks, threads: int) -> None:
        """stores: the job's tiers, the root first."""
        self._stores = stores
        self._ranks = ranks
        self._threads = threads

    def history(self) -> History:
        """As the tiers tell it now."""
        return read_history(self._stores[0], self._stores[1:])

    def restore(self, state: Mapping[str, Any]) -> tuple[int, Restored | None]:
        """Fill `state` from the newest commit that loads whole: number of the newest generation, and that commit."""
        newest, tried = self._ranks.run_on_first(lambda: patiently(self._candidates))
        threads = 2 * self._threads
        restored = restore(self._stores, tried, state, group=self._ranks.group, on_damage=self._mark, threads=threads)
        return newest, restored

    def verify(self, step: int) -> int:
        """Read back every byte of the commit of a step, each rank a share of the parts: how many, by all."""
        ref, tier = self._ranks.run_on_first(lambda: self._of_step(step))
        readers = Readers(self._stores, self._ranks.group, self._mark, self._threads, self._ranks.host)
        return verify_together(self._stores[tier], tier, ref, readers, self._threads)

    def _of_step(self, step: int) -> tuple[CommitRef, int]:
        """The commit of a step that counts, and the first tier that has it."""
        history = self.history()
        found = [ref for ref in lineage(history) if ref.step == step]
        if not found:
            raise CheckpointError(f"step {step}: no commit of it counts")
        return found[-1], places(history, found[-1])[0]

    def _candidates(self) -> tuple[int, Candidates]:
        """The newest generation's number, and what to try."""
        history = self.history()
        if lost(history):
            raise CheckpointError(f"{self._stores[0].uri}: every commit there was is damaged or gone")
        return history.newest, candidates(history)

    def _mark(self, damage: Damage) -> None:
        log.error("the commit of step %d is damaged: %s", damage.ref.step, damage.error)
        tier = self._stores[damage.tier]
        mark_damaged(tier, damage.ref, damage.error, host=damage.host, confirmed_by=damage.confirmed_by)
