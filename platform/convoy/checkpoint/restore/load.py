"""Restoring: every byte is checked, damage and outage are distinguished, and all ranks decide each step together.

Damage of a commit on a tier: it is reported, then its copy on the next tier is tried, then the commit before it. An
outage is retried, then raised: it never leads to an older commit. Damage that one host finds and another does not is
an outage, of that host.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch.distributed as dist

from convoy.checkpoint.commits import read_commit_and_parts
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import Commit, PartRecord, TensorInfo
from convoy.checkpoint.restore.compatibility import match_state
from convoy.checkpoint.restore.reshard import reshard
from convoy.checkpoint.state.tree import load_state_dicts, put_values
from convoy.checkpoint.verify.verdicts import Damage, Outcome, ReadingRanks, Verdict
from convoy.config.errors import ConfigError
from convoy.job.lineage import CommitRef
from convoy.storage import Store, StoreUnavailable

__all__ = ["Candidates", "Damage", "Restored", "restore", "retry_on_outage"]

T = TypeVar("T")

Candidates = Sequence[tuple[CommitRef, list[int]]]
"""Commits in the order in which they are tried, each with the tiers that have it: `job.lineage.restore_candidates`."""

THREADS = 8
OUTAGE_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0)
"""Between the tries while a store is out of reach."""


@dataclass(frozen=True)
class Restored:
    """The commit that the state now holds."""

    commit: Commit
    tier: int
    """Index of the tier that it was read from."""
    bytes: int
    """Read by this rank."""
    seconds: float
    damaged: tuple[Damage, ...] = ()
    """Damaged commits that were tried before it."""

    @property
    def step(self) -> int:
        return self.commit.step


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
    other_ranks: Mapping[str, TensorInfo] | None = None,
) -> Restored | None:
    """Fill `state` in place from the first candidate that loads. All ranks of `group` call it.

    candidates: rank 0's alone counts; None and empty: there is no commit, and None is returned. on_damage: called on
    rank 0, to mark it. check: raises ConfigError for a commit that is not to be loaded. threads: chunks read at once.
    host: of this rank; None: by the name it has. other_ranks: tensors by name that are in the state of other ranks, and
    perhaps in theirs alone; all ranks together have what was saved, no more, no less.
    Raises on all ranks alike: ConfigError (another model, or a newer format; `state` is as it was), StoreUnavailable,
    CheckpointError (no candidate loads); `state` holds anything after the last two.
    """
    readers = ReadingRanks(tiers, group, on_damage, threads, host)
    work = _Restore(tiers, state, other_ranks or {}, readers, check, threads)
    agreed = readers.broadcast(list(candidates or []))
    for ref, holders in agreed:
        restored = work.try_commit(ref, holders, sleep)
        if restored is not None:
            return restored
    if not agreed:
        return None
    raise CheckpointError(f"none of {len(agreed)} commits can be read; the state is not usable: {work.last_error}")


def retry_on_outage(work: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """The result of the work, which is retried while a store is out of reach; then StoreUnavailable is raised."""
    for pause in OUTAGE_PAUSES_SECONDS:
        try:
            return work()
        except StoreUnavailable:
            sleep(pause)
    return work()


@dataclass(eq=False)
class _Restore:
    tiers: Sequence[Store]
    state: Mapping[str, Any]
    other_ranks: Mapping[str, TensorInfo]
    readers: ReadingRanks
    check: Callable[[Commit], None]
    threads: int
    began: float = field(default_factory=time.perf_counter)
    damaged: list[Damage] = field(default_factory=list)
    last_error: str = ""

    def try_commit(self, ref: CommitRef, tiers: Sequence[int], sleep: Callable[[float], None]) -> Restored | None:
        """Load the commit from one of these tiers; None: it is on none of them whole."""
        left = list(tiers)
        for pause in (*OUTAGE_PAUSES_SECONDS, None):
            out_of_reach = False
            for tier in tuple(left):
                verdict, restored = self._try_tier(ref, tier)
                if restored is not None:
                    return restored
                self.last_error = verdict.error
                out_of_reach = out_of_reach or verdict.outcome is Outcome.UNAVAILABLE
                if verdict.outcome is not Outcome.UNAVAILABLE:
                    left.remove(tier)
            if not out_of_reach:
                return None
            if pause is None:
                raise StoreUnavailable(f"commit {ref.name}: {self.last_error}; the state is not usable")
            sleep(pause)
        raise AssertionError("unreachable")

    def _try_tier(self, ref: CommitRef, tier: int) -> tuple[Verdict, Restored | None]:
        """Raises ConfigError, CheckpointError for what no other place would mend."""
        store = self.tiers[tier]
        with self.readers.hold_lease(store, ref):
            verdict, described = self._read_on_rank_0(store, ref)
            if described is None:
                return self._judge_or_raise(ref, tier, [verdict], files=False), None
            commit, parts = described
            verdict, fit = self.readers.run_to_verdict(lambda: self._match_state(commit, parts))
            checked = self._judge_or_raise(ref, tier, self.readers.all_gather(verdict), files=False)
            if checked.outcome is not Outcome.DONE:
                return checked, None
            assert fit is not None
            tree, values = fit
            verdict, count = self.readers.run_to_verdict(
                lambda: reshard(store, commit, parts, tree.tensors, self.threads)
            )
            filled = self._judge_or_raise(ref, tier, self.readers.all_gather(verdict), files=True)
            if filled.outcome is not Outcome.DONE:
                return filled, None
        put_values(tree, values)
        load_state_dicts(tree)
        seconds = time.perf_counter() - self.began
        return filled, Restored(commit, tier, count or 0, seconds, tuple(self.damaged))

    def _match_state(self, commit: Commit, parts: Sequence[PartRecord]) -> Any:
        self.check(commit)
        return match_state(self.state, commit, parts, self.other_ranks)

    def _read_on_rank_0(self, store: Store, ref: CommitRef) -> tuple[Verdict, tuple[Commit, list[PartRecord]] | None]:
        """The commit and its part records, which rank 0 reads for all."""
        answer: Any = None
        if self.readers.rank == 0:
            answer = self.readers.run_to_verdict(lambda: read_commit_and_parts(store, ref))
        verdict, described = self.readers.broadcast(answer)
        return verdict, described

    def _judge_or_raise(self, ref: CommitRef, tier: int, verdicts: Sequence[Verdict], *, files: bool) -> Verdict:
        """Report damage, and raise what no other place would mend. The verdict is the same on all ranks.

        verdicts: of each rank, or of rank 0 alone. files: they read more than the commit and its part records.
        """
        verdict, damage = self.readers.judge_and_mark(ref, tier, verdicts, files=files)
        if damage is not None:
            self.damaged.append(damage)
        if verdict.outcome is Outcome.REFUSED:
            raise ConfigError(verdict.error)
        if verdict.outcome is Outcome.BROKEN:
            raise CheckpointError(f"{verdict.error}; the state is not usable")
        return verdict
