"""The generation that the saves of an opened store belong to: what others still write there counts no more."""

from collections.abc import Sequence

import torch

import convoy
from convoy.checkpoint.format import DRAFT, Commit, Progress
from convoy.checkpoint.open_ranks import Ranks
from convoy.checkpoint.raised import as_checkpoint_errors
from convoy.checkpoint.restore.load import Restored
from convoy.checkpoint.save.parent import KeptOrigin
from convoy.job.generations import form_generation
from convoy.job.lineage import CommitRef, Generation
from convoy.storage import Store


class OwnGeneration:
    """Formed by the first save, on from what was restored, else from what is newest."""

    def __init__(self, stores: Sequence[Store], ranks: Ranks, session: str) -> None:
        """stores: the job's tiers, the root first. session: a name of this opening, the same on all ranks."""
        self._stores = stores
        self._ranks = ranks
        self._session = session
        self._origin = KeptOrigin()
        self.formed: Generation | None = None

    def begin(self) -> None:
        """Form it, if it is not yet. All ranks call it. Raises CheckpointError."""
        if self.formed is None:
            with as_checkpoint_errors():
                self.formed = self._ranks.from_first(self._form)
            self._origin.drop()

    def restored(self, newest: int, restored: Restored | None) -> None:
        """Go on from there, if it is not formed yet. newest: number of the newest generation when that began."""
        if self.formed is None and self._ranks.rank == 0:  # which forms it
            self._origin.keep(newest, restored, self._stores)

    def leave(self) -> None:
        """The next save forms another one, on from what is newest then."""
        self.formed = None
        self._origin.drop()

    def close(self) -> None:
        """What was restored is held no more."""
        self._origin.drop()

    @property
    def parent(self) -> CommitRef | None:
        """The commit that it goes on from; it must be formed."""
        assert self.formed is not None
        return self.formed.parent

    def draft(self, step: int) -> Commit:
        """Of a commit of it, as far as it is known before anything is written; it must be formed."""
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

    def _form(self) -> Generation:
        return form_generation(
            self._stores[0],
            formation=f"checkpoints {self._session}",
            nodes=len(set(self._ranks.hosts)),
            world_size=self._ranks.size,
            config_hash="",
            rendezvous="",
            others=self._stores[1:],
            origin=self._origin.origin,
        )
