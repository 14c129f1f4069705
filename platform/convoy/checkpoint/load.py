"""Restoring: every byte checked, damage and outage told apart, and one decision of all ranks at each step.

Damage of a commit on a tier: it is reported, then its copy on the next tier is tried, then the commit before it. An
outage is retried, then raised: it never leads to an older commit. Damage that one host finds and another does not is
an outage, of that host.
"""

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import torch.distributed as dist

from convoy.checkpoint.commits import CommitGoneError, DamagedPartError, IncompleteCommitError, describe
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.fill import fill
from convoy.checkpoint.fit import fitting
from convoy.checkpoint.format import Commit, DamagedCommitError, PartRecord
from convoy.checkpoint.second_host import Finding, Question, found_by_two, misread, named, questions
from convoy.checkpoint.tree import hand_back, put_values
from convoy.checkpoint.verify import read_again
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

log = logging.getLogger("convoy.checkpoint")


@dataclass(frozen=True)
class Damage:
    """A commit that is not what was written, on one tier."""

    ref: CommitRef
    tier: int
    error: str
    host: str = ""
    """That found it."""
    confirmed_by: str = ""
    """Another host that found it too; empty: there is none, or it needs none."""


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
    part: int | None = None
    """Of damage, whose writer's, if it is of one."""
    certain: bool = False
    """Damage that does not depend on how the host reads."""


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
    host: str | None = None,
) -> Restored | None:
    """Fill `state` in place from the first candidate that loads. All ranks of `group` call it.

    candidates: rank 0's alone counts; None and empty: there is no commit, and None is returned. on_damage: called on
    rank 0, to mark it. check: raises ConfigError for a commit that is not to be loaded. threads: chunks read at once.
    host: of this rank; None: by the name it has.
    Raises on all ranks alike: ConfigError (another model, or a newer format; `state` is as it was), StoreUnavailable,
    CheckpointError (no candidate loads); `state` holds anything after the last two.
    """
    work = _Restore(tiers, state, group, on_damage, check, threads, host or socket.gethostname())
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
        host: str,
    ) -> None:
        self._tiers = tiers
        self._state = state
        self._group = group
        self._rank = 0 if group is None else dist.get_rank(group)
        self._on_damage = on_damage
        self._check = check
        self._threads = threads
        self._host = host
        self._hosts: list[str] | None = None
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
                return self._judged(ref, tier, [verdict], data=False), None
            commit, parts = described
            verdict, fit = self._tried(lambda: self._fit(commit, parts))
            checked = self._judged(ref, tier, self._everyones(verdict), data=False)
            if checked.outcome is not _Outcome.DONE:
                return checked, None
            assert fit is not None
            tree, values = fit
            verdict, count = self._tried(lambda: fill(store, commit, parts, tree.tensors, self._threads))
            filled = self._judged(ref, tier, self._everyones(verdict), data=True)
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
            answer = self._tried(lambda: describe(store, ref))
        verdict, described = self.first(answer)
        return verdict, described

    def _judged(self, ref: CommitRef, tier: int, verdicts: Sequence[_Verdict], *, data: bool) -> _Verdict:
        """Report damage, and raise what no other place would mend. The verdict is the same on all ranks.

        verdicts: of each rank, or of rank 0 alone. data: they read more than the commit and its part records.
        """
        verdict = max(verdicts, key=lambda v: v.outcome)
        if verdict.outcome is _Outcome.DAMAGED:
            verdict, damage = self._confirmed(ref, tier, verdicts, data)
            if damage is not None:
                verdict = self._reported(damage, verdict)
        if verdict.outcome is _Outcome.REFUSED:
            raise ConfigError(verdict.error)
        if verdict.outcome is _Outcome.BROKEN:
            raise CheckpointError(f"{verdict.error}; the state is not usable")
        return verdict

    def _reported(self, damage: Damage, verdict: _Verdict) -> _Verdict:
        """The verdict, unless the damage cannot be marked: the commit would count again for the next generation."""
        self._damaged.append(damage)
        marked = self._tried(lambda: self._on_damage(damage))[0] if self._rank == 0 else _Verdict()
        marked = self.first(marked)
        return verdict if marked.outcome is _Outcome.DONE else marked

    def _confirmed(
        self, ref: CommitRef, tier: int, verdicts: Sequence[_Verdict], data: bool
    ) -> tuple[_Verdict, Damage | None]:
        """What becomes of damage that some ranks found: ranks of other hosts, where there are any, read the same."""
        hosts, certain = self._all_hosts(), [v for v in verdicts if v.certain]
        found = [Finding(r, v.part, v.error) for r, v in enumerate(verdicts) if v.outcome is _Outcome.DAMAGED]
        asked, both = questions(found, hosts), found_by_two(found, hosts)
        if certain or not asked:
            verdict = certain[0] if certain else verdicts[found[0].rank]
            return verdict, Damage(ref, tier, verdict.error, hosts[verdicts.index(verdict)])
        if both is None:
            mine = {n: q.finding.part for n, q in enumerate(asked) if q.witness == self._rank}
            answers = {n: self._read_again(ref, tier, part, data) for n, part in mine.items()}
            told: dict[int, _Verdict] = {n: v for some in self._everyones(answers) for n, v in some.items()}
            both = next((q for n, q in enumerate(asked) if told[n].outcome is _Outcome.DAMAGED), None)
            if both is None:
                return self._unconfirmed(ref, asked, told), None
        finding = both.finding
        damage = Damage(ref, tier, finding.error, hosts[finding.rank], hosts[both.witness])
        return verdicts[finding.rank], damage

    def _unconfirmed(self, ref: CommitRef, asked: Sequence[Question], told: Mapping[int, _Verdict]) -> _Verdict:
        """An outage: of the store, if those who were to read again could not, or of the hosts that read wrongly."""
        worst = max(told.values(), key=lambda v: v.outcome)
        if worst.outcome is not _Outcome.DONE:
            return worst
        hosts = self._all_hosts()
        wrong = (
            misread(hosts[f.rank], hosts[q.witness], named(f.part, ref.name), f.error)
            for q in asked
            for f in [q.finding]
        )
        error = "; ".join(wrong)
        if self._rank == 0:
            log.error("%s", error)
        return _Verdict(_Outcome.UNAVAILABLE, error)

    def _read_again(self, ref: CommitRef, tier: int, part: int | None, data: bool) -> _Verdict:
        store = self._tiers[tier]
        return self._tried(lambda: read_again(store, ref, part, data=data, threads=self._threads))[0]

    def _all_hosts(self) -> list[str]:
        """Of each rank. Asked for only when damage was found, which all ranks know."""
        if self._hosts is None:
            self._hosts = self._everyones(self._host)
        return self._hosts

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
            part = error.writer if isinstance(error, DamagedPartError) else None
            certain = isinstance(error, IncompleteCommitError)
            return _Verdict(_Outcome.DAMAGED, str(error), part, certain), None
        except StoreUnavailable as error:
            return _Verdict(_Outcome.UNAVAILABLE, str(error)), None
        except ConfigError as error:
            return _Verdict(_Outcome.REFUSED, str(error)), None
        except Exception as error:
            return _Verdict(_Outcome.BROKEN, f"rank {self._rank}: {type(error).__name__}: {error}"), None

    def _everyones(self, value: T) -> list[T]:
        if self._group is None:
            return [value]
        values: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(values, value, group=self._group)
        return values

    def first(self, value: Any) -> Any:
        """Rank 0's value, on all ranks."""
        if self._group is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, group=self._group, group_src=0)
        return box[0]
