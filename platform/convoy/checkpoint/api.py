"""Verified checkpoints for any training loop: what is restored is a committed state, bit for bit, or an error."""

import atexit
import contextlib
import functools
import logging
import os
import socket
import sys
import time
import uuid
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

import convoy
from convoy.checkpoint.chores import Busy, chores
from convoy.checkpoint.commits import CommitGoneError, read_commit
from convoy.checkpoint.emergency import save_now
from convoy.checkpoint.engine import CLOSE_SECONDS, Checked, Engine
from convoy.checkpoint.errors import CheckpointError, one_line
from convoy.checkpoint.everyones import everyones
from convoy.checkpoint.format import Commit, DamagedCommitError, Progress
from convoy.checkpoint.link import GRACE_SECONDS
from convoy.checkpoint.load import Candidates, Damage, Restored, patiently
from convoy.checkpoint.load import restore as load
from convoy.checkpoint.looks import in_thread
from convoy.checkpoint.marks import mark_damaged
from convoy.checkpoint.messages import AfterCommit, Pruned, WriterSetup
from convoy.checkpoint.origin import KeptOrigin
from convoy.checkpoint.prune import prune
from convoy.checkpoint.queue import Attempt
from convoy.checkpoint.saves import Outcome, Saves
from convoy.checkpoint.staging import Staged
from convoy.checkpoint.verdicts import Readers
from convoy.checkpoint.verify_gang import verify_together
from convoy.checkpoint.views import Agreed, View
from convoy.config.checkpoint import RetentionConfig, StoreConfig
from convoy.config.errors import ConfigError
from convoy.job.generations import CommitsLostError, GenerationLostError, form_generation, rewind
from convoy.job.lineage import CommitRef, Generation, History, candidates, lineage, lost, places, read_history
from convoy.storage import StoreUnavailable, open_store

__all__ = ["CheckpointError", "Checkpoints", "Pending", "Restored"]

T = TypeVar("T")

EMERGENCY_SLOT = 2
"""A buffer of its own: the usual two may be in use."""

log = logging.getLogger("convoy.checkpoint")


class Pending:
    """A save that was begun."""

    def __init__(
        self,
        step: int,
        copy: Staged | None,
        result: Callable[[float | None], Commit],
        *,
        skipped: bool = False,
    ) -> None:
        self.step = step
        self.skipped = skipped
        """Two saves were under way already: this one was not begun."""
        self._copy = copy
        self._result = result

    def staged(self) -> None:
        """Return when the state may be changed by other things than the optimizer's step, which waits by itself."""
        if self._copy is not None:
            self._copy.wait()

    def wait(self, timeout_seconds: float | None = None) -> Commit:
        """The commit, once it is durable. Raises CheckpointError, which says why there is none, and TimeoutError.

        A store that hangs is waited for until the save's deadline, on each tier. A rank to which it does not tell what
        became of the save raises that the step may not be saved: the coordinator, rank 0, alone knows then.
        """
        return self._result(timeout_seconds)


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
        """uri: a path that all ranks share, or `s3://bucket/prefix`.

        optimizer: what only its step changes is copied while training goes on; None: `save` copies before it returns.
        tiers: further places, to which commits are copied; while one does not take a save the next one does. What the
        ranks still copy or read back when a save begins keeps them from doing so with its commit, on that tier; for the
        newest commit this is made up for by `close`, and not before.
        group: of the ranks that save together; None: all of them, or this one where there is no process group.
        deadline_seconds: of a save, on each tier, and at `close` of what is done between saves. verify: read commits
        back in the background, each that the ranks have time for.
        keep_last, keep_every_steps: as in `config.checkpoint.RetentionConfig`. threads: chunks written at once.
        write_mb_per_second: pace at which this rank writes while nobody waits for a save, in 10^6 bytes, so that the
        steps beside it do not feel it; faster where its part would take more than 30 s; None: as fast as the storage.
        """
        self._config = StoreConfig() if store is None else store
        self._policy = RetentionConfig(keep_last=keep_last, keep_every_steps=keep_every_steps)
        self._stores = [open_store(place, self._config) for place in (uri, *tiers)]
        self._setup = WriterSetup(
            tiers=[place.uri for place in self._stores],
            store=self._config,
            keep_last=keep_last,
            keep_every_steps=keep_every_steps,
            threads=threads,
            bytes_per_second=None if write_mb_per_second is None else 1e6 * write_mb_per_second,
        )
        self._group = _group(group, 2 * (1 + len(tiers)) * (deadline_seconds + 2 * GRACE_SECONDS))
        self._rank = 0 if self._group is None else dist.get_rank(self._group)
        self._world_size = 1 if self._group is None else dist.get_world_size(self._group)
        self._verify = verify
        self._threads = threads
        self._deadline = deadline_seconds
        session, *_ = self._everyones(uuid.uuid4().hex[:12])
        self._session = session
        self._hosts = self._everyones(socket.gethostname())
        self._generation: Generation | None = None
        self._origin = KeptOrigin()
        self._emergencies = Counter[tuple[int, ...]]()
        self.skipped = 0
        """Saves that were not begun because two were under way."""
        self._engine = Engine(
            self._setup, rank=self._rank, world_size=self._world_size, group=self._group, optimizer=optimizer
        )
        self._saves = Saves(
            self._engine,
            self._stores,
            session,
            deadline_seconds=deadline_seconds,
            commits=self._rank == 0,
            chores=self._chores,
        )
        self._closed = False
        self._at_exit = functools.partial(_close_at_exit, weakref.ref(self), os.getpid())
        atexit.register(self._at_exit)

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

        The first one starts a generation of the store, on from the commit that was restored, else from the newest one.
        step: optimizer steps done; above that of every commit that this one goes on from. may_skip: two saves may be
        under way, a further one is skipped; if False it waits for its turn. Otherwise it returns at once.
        emergency: the commit is there on return; only the `reachable` ranks (None: all) take part, and no word passes
        between them; the structure must have been saved before. Of the step of the newest commit it gives that commit.
        """
        if emergency:
            ranks = sorted(range(self._world_size) if reachable is None else set(reachable))
            return self._save_now(step, state, ranks)
        if not may_skip:
            self._saves.wait_for_room()
        checked, fits, error = self._checked(state)
        told = self._everyones((_shown(error), step, fits, self._saves.view()))
        agreed = self._agree(told, error)
        self._begin_generation()
        self._check_step(step, agreed)
        if not agreed.may_add:
            self.skipped += 1
            log.warning("step %d is not saved: two saves are under way", step)
            return Pending(step, None, _skipped(step), skipped=True)
        assert checked is not None
        if not all(fits for _, _, fits, _ in told):
            with self._saves.lock:
                self._engine.plan(checked)
        return self._begin(step, checked)

    def restore(self, state: Mapping[str, Any]) -> Restored | None:
        """Fill `state` in place from the newest commit that loads whole; None only if there never was a commit.

        Every byte is checked; damage is marked, and the commit before tried; an outage is retried, then raised. Any
        number of ranks and any sharding will do. After an error the state is not usable, unless it says otherwise.
        The first save goes on from this commit, which is not pruned until then: what a run that has saved there before
        still commits counts no more. Where another run has begun to save since, that one stands, and the save raises.
        """
        self._engine.join()
        self._saves.settle_all()
        with _errors():
            newest, tried = self._from_first(lambda: patiently(self._candidates))
            restored = load(
                self._stores,
                tried,
                state,
                group=self._group,
                on_damage=self._mark,
                threads=2 * self._threads,
            )
        if self._generation is None and self._rank == 0:  # which forms the generation
            self._origin.keep(newest, restored, self._stores)
        return restored

    def commits(self) -> list[CommitRef]:
        """Those that count, oldest first, each with its `step`."""
        with _errors():
            return lineage(self._history())

    @property
    def waited_seconds(self) -> float:
        """For which the optimizer's steps on this rank have waited for copies of the state, in all. Of a GPU it is what
        the host has waited."""
        return self._engine.waited_seconds

    def verify(self, step: int) -> int:
        """Read back every byte of the commit of a step: how many. Marks it, as whole or as damaged.

        Each rank reads a share of the parts, and all return or raise alike. On several hosts damage is what two of them
        find; a host that alone reads a part otherwise is an error that names it, and marks nothing.
        """
        with _errors():
            ref, tier = self._from_first(lambda: self._of_step(step))
            readers = Readers(self._stores, self._group, self._mark, self._threads, self._hosts[self._rank])
            return verify_together(self._stores[tier], tier, ref, readers, self._threads)

    def prune(self) -> list[Pruned]:
        """Remove what retention no longer needs, as is done after each commit: what went, for each tier."""
        with _errors():
            generation = self._generation.generation if self._generation else self._history().newest
            root = self._stores[0]
            done = [prune(store, generation, self._policy, root=root) for store in self._stores]
        failed = next((pruned.error for pruned in done if pruned.error), None)
        if failed:
            raise CheckpointError(failed)
        return done

    def rewind(self, step: int) -> CommitRef:
        """Go back to the newest commit at or below `step`: later ones count no more. Then `restore`."""
        self._saves.settle_all()
        with _errors():
            found = self._from_first(lambda: rewind(self._stores[0], step, self._stores[1:]))
        self._generation, self._saves.newest = None, 0
        self._origin.drop()
        return found

    def close(self, deadline_seconds: float | None = None) -> None:
        """Wait until what is under way is settled and the last commit read back and copied to further tiers, and end
        the writer process.

        deadline_seconds: for all of it; a save that is not settled by then is given up. None: each save has its own
        deadline, and the reading and copying so long once more. What is not read back or copied then is logged as a
        warning. Where an error ends the `with` block or the program, the deadline is 30 s.
        Done at the end of the program too if it was forgotten.
        """
        atexit.unregister(self._at_exit)
        if self._closed:
            return
        self._closed = True
        until = None if deadline_seconds is None else time.monotonic() + deadline_seconds
        self._saves.settle_all(deadline_seconds)
        self._saves.close(self._deadline if until is None else max(0.0, until - time.monotonic()))
        self._origin.drop()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # Whoever interrupts a program does not want to wait for a store that hangs.
        self.close(None if kind is None else CLOSE_SECONDS)

    def _close_unclosed(self) -> None:
        """What `close` does, for a program that ends without: its last save would end with it."""
        if self._saves.steps:
            log.warning("steps %s are still being saved: call close() before the program ends", self._saves.steps)
        self.close(CLOSE_SECONDS if hasattr(sys, "last_value") else None)  # as `__exit__` does after an error

    def _begin(self, step: int, checked: Checked) -> Pending:
        copies: list[Staged | None] = []

        def stage(slot: int) -> None:
            self._engine.stage(slot, checked)
            copies.append(self._engine.copy(slot))

        begun = self._saves.add(step, self._draft(step), stage)
        return Pending(step, copies[0] if copies else None, self._result(begun))

    def _save_now(self, step: int, state: Mapping[str, Any], reachable: list[int]) -> Pending:
        # The ranks cannot agree on a name: it follows from what they all know, whatever became of it on each before.
        self._emergencies[tuple(reachable)] += 1
        count, ranks = self._emergencies[tuple(reachable)], zlib.crc32(repr(reachable).encode())
        if self._rank not in reachable:
            raise CheckpointError(f"rank {self._rank} is not among the reachable ranks {reachable}")
        with self._saves.lock:
            if self._group is None:
                self._begin_generation()
            if self._generation is None:
                raise CheckpointError("an emergency save needs a state that was saved before")
            self._check_newer(step)
            staged = self._engine.stage_apart(EMERGENCY_SLOT, state, reachable)
        commit = save_now(
            self._setup,
            self._stores,
            staged,
            self._draft(step),
            attempt=f"{self._session}-emergency-{count}-{ranks:08x}",
            writer=reachable.index(self._rank),
            writers=len(reachable),
            deadline_seconds=self._deadline,
        )
        with self._saves.lock:
            self._engine.discard(EMERGENCY_SLOT)
            self._saves.newest = max(self._saves.newest, step)
        return Pending(step, None, lambda _: commit)

    def _checked(self, state: Mapping[str, Any]) -> tuple[Checked | None, bool, Exception | None]:
        """The state, and whether the plan is one for it; or why it cannot be saved, which the other ranks must hear."""
        try:
            checked = self._engine.check(state)
            return checked, self._engine.fits(checked), None
        except Exception as error:  # of a `state_dict()`, whatever it may be
            return None, False, error

    def _agree(self, told: list[tuple[str | None, int, bool, View]], own: Exception | None) -> Agreed:
        errors = [f"rank {rank}: {error}" for rank, (error, *_) in enumerate(told) if error]
        if errors:
            raise CheckpointError(errors[0].removeprefix("rank 0: ") if len(told) == 1 else errors[0]) from own
        steps = sorted({step for _, step, *_ in told})
        if len(steps) > 1:
            raise CheckpointError(f"the ranks save different steps: {steps}")
        agreed = self._saves.align([view for *_, view in told])
        if agreed.superseded:
            raise CheckpointError(agreed.superseded)
        return agreed

    def _check_newer(self, step: int) -> None:
        """For an emergency, of what each rank knows by itself.

        A rank may not know yet that this very step was just committed. To save it once more gives that commit.
        """
        assert self._generation is not None
        parent = self._generation.parent
        if parent is not None and step <= parent.step:
            raise _not_newer(step, max(parent.step, self._saves.newest))
        if step < self._saves.newest:
            raise _not_newer(step, self._saves.newest)

    def _check_step(self, step: int, agreed: Agreed) -> None:
        assert self._generation is not None
        parent = self._generation.parent
        newest = max(agreed.newest, parent.step if parent else -1)
        if step <= newest:
            raise _not_newer(step, newest)
        if step in agreed.steps:
            raise CheckpointError(f"step {step} is being saved already")

    def _begin_generation(self) -> None:
        """The first save of an opened store starts a generation: what others still write there counts no more."""
        if self._generation is None:
            with _errors():
                self._generation = self._from_first(self._form)
            self._origin.drop()

    def _form(self) -> Generation:
        return form_generation(
            self._stores[0],
            formation=f"checkpoints {self._session}",
            nodes=len(set(self._hosts)),
            world_size=self._world_size,
            config_hash="",
            rendezvous="",
            others=self._stores[1:],
            origin=self._origin.origin,
        )

    def _draft(self, step: int) -> Commit:
        assert self._generation is not None
        return Commit(
            generation=self._generation.generation,
            step=step,
            attempt="",
            parent=self._generation.parent,
            world_size=self._world_size,
            progress=Progress(step=step),
            versions={"convoy": convoy.__version__, "torch": torch.__version__},
        )

    def _result(self, begun: "Future[Outcome]") -> Callable[[float | None], Commit]:
        def result(timeout_seconds: float | None) -> Commit:
            began = time.monotonic()
            outcome = self._saves.wait(begun, timeout_seconds)
            if outcome.error is not None:
                raise CheckpointError(f"{outcome.failure}: {outcome.error}")
            if outcome.commit is not None:
                return outcome.commit
            left = None if timeout_seconds is None else max(0.0, began + timeout_seconds - time.monotonic())
            return self._read(outcome.attempt, left)

        return result

    def _read(self, attempt: Attempt, timeout_seconds: float | None) -> Commit:
        """The commit that another rank has told of, on whichever tier it is."""
        ref, last = self._ref(attempt), self._stores[attempt.tier]
        others = [store for store in self._stores if store is not last]

        def read() -> Commit:
            for store in [last, *others]:
                with contextlib.suppress(CommitGoneError):
                    return read_commit(store, ref)
            raise CheckpointError(f"step {ref.step} was saved, but its commit is gone")

        read_by = in_thread(f"read {ref.stem}", read)
        try:
            with _errors():
                return read_by.result(self._deadline if timeout_seconds is None else timeout_seconds)
        except TimeoutError:
            if timeout_seconds is not None:
                raise
            raise CheckpointError(f"step {ref.step} was saved, but {last.uri} does not answer") from None

    def _ref(self, attempt: Attempt) -> CommitRef:
        assert self._generation is not None
        return CommitRef(generation=self._generation.generation, step=attempt.step)

    def _chores(self, attempt: Attempt, ref: CommitRef, busy: Busy) -> AfterCommit:
        tiers, turn = self._setup.tiers, attempt.number
        return chores(ref, attempt.tier, tiers, self._rank, self._hosts, turn, self._verify, busy)

    def _of_step(self, step: int) -> tuple[CommitRef, int]:
        """The commit of a step that counts, and the first tier that has it."""
        history = self._history()
        found = [ref for ref in lineage(history) if ref.step == step]
        if not found:
            raise CheckpointError(f"step {step}: no commit of it counts")
        return found[-1], places(history, found[-1])[0]

    def _history(self) -> History:
        return read_history(self._stores[0], self._stores[1:])

    def _candidates(self) -> tuple[int, Candidates]:
        """The newest generation's number, and what to try."""
        history = self._history()
        if lost(history):
            raise CheckpointError(f"{self._stores[0].uri}: every commit there was is damaged or gone")
        return history.newest, candidates(history)

    def _mark(self, damage: Damage) -> None:
        log.error("the commit of step %d is damaged: %s", damage.ref.step, damage.error)
        tier = self._stores[damage.tier]
        mark_damaged(tier, damage.ref, damage.error, host=damage.host, confirmed_by=damage.confirmed_by)

    def _everyones(self, value: T) -> list[T]:
        return [value] if self._group is None else everyones(value, self._group)

    def _from_first(self, work: Callable[[], T]) -> T:
        """What rank 0's `work` gives or raises, on all ranks."""
        box: list[Any] = [None, None]
        if self._rank == 0:
            try:
                box[0] = work()
            except Exception as error:
                box[1] = error
        if self._group is not None:
            dist.broadcast_object_list(box, group=self._group, group_src=0)
        if box[1] is not None:
            raise box[1]
        return box[0]


def _group(given: dist.ProcessGroup | None, saving_seconds: float) -> dist.ProcessGroup | None:
    """On the CPU, and of its own: a collective of ours must not meet one of the training's.

    saving_seconds: how long a rank may wait for its saves, before it comes to where the others wait for it.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    ranks = None if given is None else dist.get_process_group_ranks(given)
    timeout = max(default_pg_timeout, timedelta(seconds=saving_seconds + GRACE_SECONDS))
    return dist.new_group(ranks, backend="gloo", timeout=timeout)


def _shown(error: Exception | None) -> str | None:
    """What the other ranks are told of an error."""
    if error is None or isinstance(error, CheckpointError):
        return None if error is None else str(error)
    return f"{type(error).__name__}: {one_line(error)}"


def _close_at_exit(opened: "weakref.ref[Checkpoints]", process: int) -> None:
    ckpt = opened()
    if ckpt is not None and os.getpid() == process:  # a fork has none of the threads that it would wait for
        ckpt._close_unclosed()


def _not_newer(step: int, newest: int) -> CheckpointError:
    return CheckpointError(f"step {step}: the newest commit is of step {newest}; rewind to save this one again")


def _skipped(step: int) -> Callable[[float | None], Commit]:
    def result(_: float | None) -> Commit:
        raise CheckpointError(f"step {step} was skipped: two saves were under way")

    return result


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Whoever scripts against this needs one class."""
    try:
        yield
    except (ConfigError, DamagedCommitError, StoreUnavailable, CommitsLostError, GenerationLostError) as error:
        raise CheckpointError(str(error)) from error
