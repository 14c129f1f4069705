"""Restoring: every byte checked, damage and outage told apart, and one decision of all ranks at each step.

Damage of a commit on a tier: it is reported, then its copy on the next tier is tried, then the commit before it. An
outage is retried, then raised: it never leads to an older commit.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

import torch.distributed as dist

from convoy.checkpoint.commits import CommitGoneError, confirmed, read_commit, read_part
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.fill import fill
from convoy.checkpoint.fit import fitting
from convoy.checkpoint.format import Commit, DamagedCommitError, PartRecord
from convoy.checkpoint.tree import hand_back, put_values
from convoy.config.errors import ConfigError
from convoy.job.leases import lease
from convoy.job.lineage import CommitRef
from convoy.storage import Store, StoreUnavailable

T = TypeVar("T")

Candidates = Sequence[tuple[CommitRef, list[int]]]
"""Commits in the order in which they are tried, each with the tiers that have it, as `job.lineage.candidates` gives."""

THREADS = 8
OUTAGE_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0)
"""Between the tries while a store is out of reach."""


@dataclass(frozen=True)
class Damage:
    """A commit that is not what was written, on one tier."""

    ref: CommitRef
    tier: int
    error: str


@dataclass(frozen=True)
class Restored:
    """What the state holds now."""

    commit: Commit
    tier: int
    """Index of the tier that it was read from."""
    bytes: int
    """Read by this rank."""
    seconds: float
    damaged: tuple[Damage, ...] = ()
    """What was tried before it."""

    @property
    def step(self) -> int:
        return self.commit.step


class _Outcome(IntEnum):
    """Of one step on one rank; of all ranks the greatest counts."""

    DONE = 0
    DAMAGED = 1
    GONE = 2
    UNAVAILABLE = 3
    REFUSED = 4
    BROKEN = 5


@dataclass(frozen=True)
class _Verdict:
    outcome: _Outcome = _Outcome.DONE
    error: str = ""


def restore(
    tiers: Sequence[Store],
    candidates: Candidates | None,
    state: Mapping[str, Any],
    *,
    group: dist.ProcessGroup | None = None,
    on_damage: Callable[[Damage], None] = lambda damage: None,
    check: Callable[[Commit], None] = lambda commit: None,
    threads: int = THREADS,
    sleep: Callable[[float], None] = time.sleep,
) -> Restored | None:
    """Fill `state` in place from the first candidate that loads. All ranks of `group` call it.

    candidates: rank 0's alone counts; None and empty: there is no commit, and None is returned. on_damage: called on
    rank 0, to mark it. check: raises ConfigError for a commit that is not to be loaded. threads: chunks read at once.
    Raises on all ranks alike: ConfigError (another model, or a newer format; `state` is as it was), StoreUnavailable,
    CheckpointError (no candidate loads); `state` holds anything after the last two.
    """
    work = _Restore(tiers, state, group, on_damage, check, threads)
    found = work.first(list(candidates or []))
    for ref, places in found:
        restored = work.try_commit(ref, places, sleep)
        if restored is not None:
            return restored
    if not found:
        return None
    raise CheckpointError(f"none of {len(found)} commits can be read; the state is not usable: {work.last_error}")


def patiently(work: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """What the work gives, tried again while a store is out of reach; then StoreUnavailable."""
    for pause in OUTAGE_PAUSES_SECONDS:
        try:
            return work()
        except StoreUnavailable:
            sleep(pause)
    return work()


class _Restore:
    def __init__(
        self,
        tiers: Sequence[Store],
        state: Mapping[str, Any],
        group: dist.ProcessGroup | None,
        on_damage: Callable[[Damage], None],
        check: Callable[[Commit], None],
        threads: int,
    ) -> None:
        self._tiers = tiers
        self._state = state
        self._group = group
        self._rank = 0 if group is None else dist.get_rank(group)
        self._on_damage = on_damage
        self._check = check
        self._threads = threads
        self._began = time.perf_counter()
        self._damaged: list[Damage] = []
        self.last_error = ""

    def try_commit(self, ref: CommitRef, places: Sequence[int], sleep: Callable[[float], None]) -> Restored | None:
        """Load the commit from one of its places; None: it is on none of them whole."""
        left = list(places)
        for pause in (*OUTAGE_PAUSES_SECONDS, None):
            out_of_reach = False
            for tier in tuple(left):
                verdict, restored = self._try_place(ref, tier)
                if restored is not None:
                    return restored
                self.last_error = verdict.error
                out_of_reach = out_of_reach or verdict.outcome is _Outcome.UNAVAILABLE
                if verdict.outcome is not _Outcome.UNAVAILABLE:
                    left.remove(tier)
            if not out_of_reach:
                return None
            if pause is None:
                raise StoreUnavailable(f"commit {ref.name}: {self.last_error}; the state is not usable")
            sleep(pause)
        raise AssertionError("unreachable")

    def _try_place(self, ref: CommitRef, tier: int) -> tuple[_Verdict, Restored | None]:
        """Raises ConfigError, CheckpointError for what no other place would mend."""
        store = self._tiers[tier]
        with self._reading(store, ref):
            verdict, described = self._described(store, ref)
            if described is None:
                return self._judged(ref, tier, verdict), None
            commit, parts = described
            (verdict, fit), checked = self._tried(lambda: self._fit(commit, parts)), None
            checked = self._judged(ref, tier, self._agreed(verdict))
            if checked.outcome is not _Outcome.DONE:
                return checked, None
            assert fit is not None
            tree, values = fit
            verdict, count = self._tried(lambda: fill(store, commit, parts, tree.tensors, self._threads))
            filled = self._judged(ref, tier, self._agreed(verdict))
            if filled.outcome is not _Outcome.DONE:
                return filled, None
        put_values(tree, values)
        hand_back(tree)
        seconds = time.perf_counter() - self._began
        return filled, Restored(commit, tier, count or 0, seconds, tuple(self._damaged))

    def _fit(self, commit: Commit, parts: Sequence[PartRecord]) -> Any:
        self._check(commit)
        return fitting(self._state, commit, parts)

    @contextlib.contextmanager
    def _reading(self, store: Store, ref: CommitRef) -> Iterator[None]:
        """Nothing prunes the commit while it is read."""
        with contextlib.ExitStack() as held:
            if self._rank == 0:
                # A store may be read-only, or out of reach, which reading will tell.
                with contextlib.suppress(StoreUnavailable):
                    held.enter_context(lease(store, ref))
            yield

    def _described(self, store: Store, ref: CommitRef) -> tuple[_Verdict, tuple[Commit, list[PartRecord]] | None]:
        """The commit and its part records, which rank 0 reads for all."""
        answer: Any = None
        if self._rank == 0:
            answer = self._tried(lambda: _read(store, ref))
        verdict, described = self.first(answer)
        return verdict, described

    def _judged(self, ref: CommitRef, tier: int, verdict: _Verdict) -> _Verdict:
        """Report damage, and raise what no other place would mend. The verdict is the same on all ranks."""
        if verdict.outcome is _Outcome.DAMAGED:
            damage = Damage(ref, tier, verdict.error)
            self._damaged.append(damage)
            marked = self._tried(lambda: self._on_damage(damage))[0] if self._rank == 0 else _Verdict()
            marked = self.first(marked)
            if marked.outcome is _Outcome.UNAVAILABLE:
                return marked
            verdict = verdict if marked.outcome is _Outcome.DONE else marked
        if verdict.outcome is _Outcome.REFUSED:
            raise ConfigError(verdict.error)
        if verdict.outcome is _Outcome.BROKEN:
            raise CheckpointError(f"{verdict.error}; the state is not usable")
        return verdict

    def _tried(self, work: Callable[[], Any]) -> tuple[_Verdict, Any]:
        """What the work gives. Every error is a verdict: the other ranks must hear of it."""
        try:
            return _Verdict(), work()
        except CommitGoneError as error:
            if self._rank == 0:
                return _Verdict(_Outcome.GONE, str(error)), None
            # Rank 0 has read it, and holds it: this rank sees an older state of the store. Where it was pruned after
            # all, for there was no lease to be had, rank 0 finds that out when it is tried again.
            return _Verdict(_Outcome.UNAVAILABLE, f"rank {self._rank} does not see what rank 0 sees: {error}"), None
        except DamagedCommitError as error:
            return _Verdict(_Outcome.DAMAGED, str(error)), None
        except StoreUnavailable as error:
            return _Verdict(_Outcome.UNAVAILABLE, str(error)), None
        except ConfigError as error:
            return _Verdict(_Outcome.REFUSED, str(error)), None
        except Exception as error:
            return _Verdict(_Outcome.BROKEN, f"rank {self._rank}: {type(error).__name__}: {error}"), None

    def _agreed(self, verdict: _Verdict) -> _Verdict:
        if self._group is None:
            return verdict
        everyones: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(everyones, verdict, group=self._group)
        return max(everyones, key=lambda v: v.outcome)

    def first(self, value: Any) -> Any:
        """Rank 0's value, on all ranks."""
        if self._group is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, group=self._group, group_src=0)
        return box[0]


def _read(store: Store, ref: CommitRef) -> tuple[Commit, list[PartRecord]]:
    commit = read_commit(store, ref)
    _check_lengths(store, commit)
    with ThreadPoolExecutor(THREADS) as pool:
        return commit, list(pool.map(lambda writer: read_part(store, commit, writer), range(len(commit.parts))))


def _check_lengths(store: Store, commit: Commit) -> None:
    """One listing tells at once of files that are gone, cut or longer than they were written."""
    there = store.sizes(commit.shards)
    for name, file in commit.files.items():
        if there.get(commit.shards + name) != file.bytes:
            confirmed(store, commit, name, partial(_check_length, store, commit, name))


def _check_length(store: Store, commit: Commit, name: str) -> None:
    where, wanted = commit.shards + name, commit.files[name].bytes
    found = store.sizes(where).get(where)
    if found != wanted:
        raise DamagedCommitError(f"{store.uri}/{where}: {found} bytes, the commit says {wanted}")
