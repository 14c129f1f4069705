"""Verified checkpoints for any training loop: what is restored is a committed state, bit for bit, or an error."""

import atexit
import logging
import os
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from convoy.checkpoint.errors import CheckpointError, as_checkpoint_errors
from convoy.checkpoint.group import StoreRanks
from convoy.checkpoint.messages import Pruned, WriterSetup
from convoy.checkpoint.restore.load import Candidates, Damage, Restored, restore, retry_on_outage
from convoy.checkpoint.save.begin import Pending, StoreSaves
from convoy.checkpoint.save.driver import SaveDriver
from convoy.checkpoint.save.engine import CLOSE_SECONDS, SaveEngine
from convoy.checkpoint.save.generation import OwnGeneration
from convoy.checkpoint.save.next_save import NextSaveAgreement, SaveLogger
from convoy.checkpoint.save.writer_client import GRACE_SECONDS
from convoy.checkpoint.verify.marks import mark_damaged
from convoy.checkpoint.verify.verdicts import ReadingRanks, verify_on_all_ranks
from convoy.checkpoint.writer.prune import prune
from convoy.config.checkpoint import RetentionConfig, StoreConfig
from convoy.job.generations import rewind
from convoy.job.lineage import (
    CommitRef,
    History,
    all_commits_lost,
    counted_commits,
    intact_tiers,
    read_history,
    restore_candidates,
)
from convoy.storage import open_store

__all__ = ["CheckpointError", "Checkpoints", "Pending", "Restored"]

log = logging.getLogger("convoy.checkpoint")


class Checkpoints:
    """The checkpoints below one URI. In a process group every rank makes the same calls in the same order.

    Raises CheckpointError for all that goes wrong, with one line of text.
    """

    def __init__(
        self,
        uri: str,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        tiers: Sequence[str] = (),
        group: dist.ProcessGroup | None = None,
        deadline_seconds: float = 900.0,
        verify: bool = True,
        keep_last: int = 3,
        keep_every_steps: int | None = None,
        store: StoreConfig | None = None,
        threads: int = 4,
        write_mb_per_second: float | None = 100.0,
    ) -> None:
        """uri: a path that all ranks share, `s3://bucket/prefix` or `gs://bucket/prefix`.

        optimizer: what only its step changes is copied while training continues; None: `save` copies before it returns.
        tiers: further places, to which commits are copied; while one does not take a save the next one does. What the
        ranks still copy or read back when a save begins keeps them from doing so with its commit, on that tier; for the
        newest commit this is made up for by `close`, and not before.
        group: of the ranks that save together; None: all of them, or this one where there is no process group.
        deadline_seconds: of a save, on each tier, and at `close` of what is done between saves. verify: read commits
        back in the background, each that the ranks have time for.
        keep_last, keep_every_steps: as in `config.checkpoint.RetentionConfig`. threads: chunks written at once.
        write_mb_per_second: pace at which this rank writes while nobody waits for a save, in 10^6 bytes, so that
        concurrent steps are hardly affected; faster where its part would take more than 30 s; None: as fast as the
        storage.
        """
        store = StoreConfig() if store is None else store
        self._policy = RetentionConfig(keep_last=keep_last, keep_every_steps=keep_every_steps)
        self._stores = [open_store(place, store) for place in (uri, *tiers)]
        setup = WriterSetup(
            tiers=[place.uri for place in self._stores],
            store=store,
            keep_last=keep_last,
            keep_every_steps=keep_every_steps,
            threads=threads,
            bytes_per_second=None if write_mb_per_second is None else 1e6 * write_mb_per_second,
        )
        # A rank may wait for its saves before it comes to where the others wait for it.
        waits_seconds = 2 * (1 + len(tiers)) * (deadline_seconds + 2 * GRACE_SECONDS) + GRACE_SECONDS
        self._ranks = StoreRanks(group, waits_seconds)
        session, *_ = self._ranks.all_gather(uuid.uuid4().hex[:12])
        self._generation = OwnGeneration(self._stores, self._ranks, session)
        self._engine = SaveEngine(
            setup, rank=self._ranks.rank, world_size=self._ranks.size, group=self._ranks.group, optimizer=optimizer
        )
        self._agreement = NextSaveAgreement(self._stores, deadline_seconds, commits=self._ranks.rank == 0)
        self._driver = SaveDriver(
            self._engine,
            self._agreement,
            SaveLogger(),
            tiers=setup.tiers,
            session=session,
            rank=self._ranks.rank,
            hosts=self._ranks.hosts,
            deadline_seconds=deadline_seconds,
            verify=verify,
        )
        self._agreement.start(self._driver)
        self._saving = StoreSaves(self._driver, self._agreement, self._generation, self._ranks, self._stores)
        self._threads = threads
        self._closed = False
        self._process = os.getpid()
        atexit.register(self._close_at_exit)

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        *,
        may_skip: bool = True,
        emergency: bool = False,
        reachable: Iterable[int] | None = None,
    ) -> Pending:
        """Begin to save `state`, a dict of tensors, DTensors, objects with `state_dict`, and plain values.

        The first one starts a generation of the store, which continues the commit that was restored, else the newest.
        step: optimizer steps done; above that of every commit that this one continues. may_skip: two saves may be
        under way, a further one is skipped; if False it waits for its turn. Otherwise it returns at once.
        emergency: the commit is there on return; only the `reachable` ranks (None: all) take part, and no word passes
        between them; the structure must have been saved before. Of the step of the newest commit it gives that commit.
        """
        if self._closed:
            raise CheckpointError(f"step {step}: the store was closed")
        if emergency:
            ranks = range(self._ranks.size) if reachable is None else reachable
            return self._saving.save_emergency(step, state, sorted(set(ranks)))
        return self._saving.begin(step, state, may_skip)

    @property
    def skipped(self) -> int:
        """Saves that were not begun because two were under way."""
        return self._saving.skipped

    @property
    def waited_seconds(self) -> float:
        """How long the optimizer's steps on this rank have waited for copies of the state; on a GPU, how long the host
        has."""
        return self._engine.waited_seconds

    def restore(self, state: Mapping[str, Any]) -> Restored | None:
        """Fill `state` in place from the newest commit that loads whole; None only if there never was a commit.

        Every byte is checked; damage is marked, and the commit before tried; an outage is retried, then raised. Any
        number of ranks and any sharding will do. After an error the state is unusable, unless it says otherwise.
        The first save continues this commit, which is not pruned until then: what a run that has saved there before
        still commits counts no more. Where another run has begun to save since, that one counts, and the save raises.
        """
        self._engine.join()
        self._driver.wait_until_left(0)
        with as_checkpoint_errors():
            newest, candidates = self._ranks.run_on_rank_0(lambda: retry_on_outage(self._newest_and_candidates))
            group, threads = self._ranks.group, 2 * self._threads
            restored = restore(self._stores, candidates, state, group=group, on_damage=self._mark, threads=threads)
        self._generation.note_restored(newest, restored)
        return restored

    def commits(self) -> list[CommitRef]:
        """Those that count, oldest first, each with its `step`."""
        with as_checkpoint_errors():
            return counted_commits(self._read_history())

    def verify(self, step: int) -> int:
        """Read back every byte of the commit of a step: how many. Marks it, as whole or as damaged.

        Each rank reads a share of the parts, and all return or raise alike. On several hosts damage is what two of them
        find; a host that alone reads a part otherwise is an error that names it, and marks nothing.
        """
        with as_checkpoint_errors():
            ref, tier = self._ranks.run_on_rank_0(lambda: self._find_commit_and_tier(step))
            readers = ReadingRanks(self._stores, self._ranks.group, self._mark, self._threads, self._ranks.host)
            return verify_on_all_ranks(self._stores[tier], tier, ref, readers, self._threads)

    def prune(self) -> list[Pruned]:
        """Remove what retention no longer needs, as is done after each commit: what went, for each tier."""
        with as_checkpoint_errors():
            formed = self._generation.formed
            generation = formed.generation if formed else self._read_history().newest
            root = self._stores[0]
            done = [prune(store, generation, self._policy, root=root) for store in self._stores]
        failed = next((pruned.error for pruned in done if pruned.error), None)
        if failed:
            raise CheckpointError(failed)
        return done

    def rewind(self, step: int) -> CommitRef:
        """Go back to the newest commit at or below `step`: later ones count no more. Then `restore`."""
        self._driver.wait_until_left(0)
        with as_checkpoint_errors():
            ref = self._ranks.run_on_rank_0(lambda: rewind(self._stores[0], step, self._stores[1:]))
        self._driver.newest = None
        self._generation.renew_at_next_save()
        return ref

    def close(self, deadline_seconds: float | None = None) -> None:
        """Wait until what is under way is settled and the last commit read back and copied to further tiers, and end
        the writer process.

        deadline_seconds: for all of it; a save that is not settled by then is given up. None: each save has its own
        deadline, and the reading and copying so long once more. What is not read back or copied then is logged as a
        warning. Where an error ends the `with` block or the program, the deadline is 30 s.
        Done at the end of the program too if it was forgotten.
        """
        atexit.unregister(self._close_at_exit)
        if self._closed:
            return
        self._closed = True
        until = None if deadline_seconds is None else time.monotonic() + deadline_seconds
        self._driver.wait_until_left(0, deadline_seconds)
        self._agreement.close(self._driver.deadline_seconds if until is None else max(0.0, until - time.monotonic()))
        self._generation.release_lease()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # Whoever interrupts a program does not want to wait for a store that hangs.
        self.close(None if kind is None else CLOSE_SECONDS)

    def _read_history(self) -> History:
        return read_history(self._stores[0], self._stores[1:])

    def _find_commit_and_tier(self, step: int) -> tuple[CommitRef, int]:
        """The commit of a step that counts, and the first tier that has it."""
        history = self._read_history()
        refs = [ref for ref in counted_commits(history) if ref.step == step]
        if not refs:
            raise CheckpointError(f"step {step}: no commit of it counts")
        return refs[-1], intact_tiers(history, refs[-1])[0]

    def _newest_and_candidates(self) -> tuple[int, Candidates]:
        """The newest generation's number, and what to try."""
        history = self._read_history()
        if all_commits_lost(history):
            raise CheckpointError(f"{self._stores[0].uri}: every commit there was is damaged or gone")
        return history.newest, restore_candidates(history)

    def _mark(self, damage: Damage) -> None:
        log.error("the commit of step %d is damaged: %s", damage.ref.step, damage.error)
        tier = self._stores[damage.tier]
        mark_damaged(tier, damage.ref, damage.error, host=damage.host, confirmed_by=damage.confirmed_by)

    def _close_at_exit(self) -> None:
        """Close the store of a program that ends without: its last save would end with it."""
        if os.getpid() != self._process:  # a fork has none of the threads that it would wait for
            return
        if self._driver.steps:
            log.warning("steps %s are still being saved: call close() before the program ends", self._driver.steps)
        self.close(CLOSE_SECONDS if hasattr(sys, "last_value") else None)  # as `__exit__` does after an error
