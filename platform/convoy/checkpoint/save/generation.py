"""The generation that the saves of an opened store belong to: what others still write there counts no more."""

import contextlib
from collections.abc import Sequence

import torch

import convoy
from convoy.checkpoint.errors import as_checkpoint_errors
from convoy.checkpoint.format import DRAFT, Commit, Progress
from convoy.checkpoint.group import StoreRanks
from convoy.checkpoint.restore.load import Restored
from convoy.checkpoint.save.commit_lookup import in_thread
from convoy.job.generations import RestoreOrigin, form_generation
from convoy.job.leases import lease
from convoy.job.lineage import CommitRef, Generation
from convoy.storage import Store, StoreUnavailable

RELEASE_SECONDS = 2.0
"""Time limit for giving the lease back; where that takes longer it is left to expire."""


class OwnGeneration:
    """Formed by the first save: it continues what was restored, or else what is newest."""

    def __init__(self, stores: Sequence[Store], ranks: StoreRanks, session: str) -> None:
        """stores: the job's tiers, the root first. session: a name of this opening, the same on all ranks."""
        self._stores = stores
        self._ranks = ranks
        self._session = session
        self._origin: RestoreOrigin | None = None
        """What was restored, on the rank that forms the generation; None: nothing since the last one was formed."""
        self._lease: contextlib.ExitStack | None = None
        """Keeps the commit that was restored from being pruned."""
        self.formed: Generation | None = None

    def form_if_needed(self) -> None:
        """Form it, unless it exists. All ranks call it. Raises CheckpointError."""
        if self.formed is None:
            with as_checkpoint_errors():
                self.formed = self._ranks.run_on_rank_0(self._form)
            self.release_lease()

    def note_restored(self, newest_generation: int, restored: Restored | None) -> None:
        """Continue from there, unless it is formed. newest_generation: its number when the restore began.
        restored: None where there was no commit."""
        if self.formed is not None or self._ranks.rank != 0:
            return
        self.release_lease()
        self._origin = RestoreOrigin(restored.commit.ref if restored else None, newest_generation)
        if restored is not None:
            # A store may be read-only; whether the commit still exists is checked again when it becomes a parent.
            with contextlib.suppress(StoreUnavailable), contextlib.ExitStack() as held:
                held.enter_context(lease(self._stores[restored.tier], restored.commit.ref))
                self._lease = held.pop_all()

    def renew_at_next_save(self) -> None:
        """The next save forms another generation, which continues what is newest then."""
        self.formed = None
        self.release_lease()

    @property
    def parent(self) -> CommitRef | None:
        """The commit that it continues; it must be formed."""
        assert self.formed is not None
        return self.formed.parent

    def draft(self, step: int) -> Commit:
        """A commit of it, as far as it is known before anything is written; it must be formed."""
        assert self.formed is not None
        return Commit(
            generation=self.formed.generation,
            step=step,
            attempt=DRAFT,
            parent=self.formed.parent,
            world_size=self._ranks.size,
            progress=Progress(step=step),
            versions={"convoy": convoy.__version__, "torch": torch.__version__},
        )

    def release_lease(self) -> None:
        """A generation names the commit, or nothing continues it. A store that hangs is not waited for."""
        held, self._lease, self._origin = self._lease, None, None
        if held is not None:
            with contextlib.suppress(TimeoutError):
                in_thread("give a lease back", held.close).result(RELEASE_SECONDS)

    def _form(self) -> Generation:
        return form_generation(
            self._stores[0],
            formation=f"checkpoints {self._session}",
            nodes=len(set(self._ranks.hosts)),
            world_size=self._ranks.size,
            config_hash="",
            rendezvous="",
            others=self._stores[1:],
            origin=self._origin,
        )
