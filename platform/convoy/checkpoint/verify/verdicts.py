"""The outcome of reading a commit on all ranks, and what follows from it: the same on each.

Damage that one host finds and another does not is an outage, of that host.
"""

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch.distributed as dist

from convoy.checkpoint.commits import CommitGoneError, DamagedPartError, TensorsMissingError, read_commit
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import DamagedCommitError
from convoy.checkpoint.group import GroupMember
from convoy.checkpoint.verify.commit import reread_from_storage, verify_without_marking_damage
from convoy.checkpoint.verify.marks import dismiss_suspicions, suspicions
from convoy.checkpoint.verify.second_host import (
    DamageFinding,
    WitnessedFinding,
    find_confirmed_damage,
    misread_message,
    part_label,
    plan_rereads,
)
from convoy.config.errors import ConfigError
from convoy.job.leases import lease
from convoy.job.lineage import CommitRef
from convoy.storage import Store, StoreUnavailable

log = logging.getLogger("convoy.checkpoint")


@dataclass(frozen=True)
class Damage:
    """A commit that is not what was written, on one tier."""

    ref: CommitRef
    tier: int
    error: str
    host: str = ""
    """The host that found it."""
    confirmed_by: str = ""
    """Another host that found it too; empty: there is none, or it needs none."""


class Outcome(IntEnum):
    """The outcome of one step on one rank; of all ranks' the greatest counts."""

    DONE = 0
    DAMAGED = 1
    GONE = 2
    UNAVAILABLE = 3
    REFUSED = 4
    BROKEN = 5


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome = Outcome.DONE
    error: str = ""
    part: int | None = None
    """The writer whose part is damaged, if it is one writer's."""
    certain: bool = False
    """Damage that does not depend on how the host reads."""


class ReadingRanks(GroupMember):
    """The ranks that read commits together: all call each method, but for `hold_lease` and `run_to_verdict`."""

    def __init__(
        self,
        tiers: Sequence[Store],
        group: dist.ProcessGroup | None,
        on_damage: Callable[[Damage], None],
        threads: int,
        host: str | None = None,
    ) -> None:
        """on_damage: called on rank 0, to mark it. host: of this rank; None: by the name it has."""
        super().__init__(group)
        self._tiers = tiers
        self._on_damage = on_damage
        self._threads = threads
        self._host = host or socket.gethostname()
        self._hosts: list[str] | None = None

    def judge_and_mark(
        self, ref: CommitRef, tier: int, verdicts: Sequence[Verdict], *, files: bool
    ) -> tuple[Verdict, Damage | None]:
        """The verdict of all, from those of each rank or of rank 0 alone, and the damage if there is: it is marked.

        files: they read more than the commit and its part records.
        """
        verdict, damage = max(verdicts, key=lambda v: v.outcome), None
        if verdict.outcome is Outcome.DAMAGED:
            verdict, damage = self._confirm_damage(ref, tier, verdicts, files)
            if damage is not None:
                verdict = self._mark_damage(damage, verdict)
        return verdict, damage

    @contextlib.contextmanager
    def hold_lease(self, store: Store, ref: CommitRef) -> Iterator[None]:
        """Nothing prunes the commit while it is read."""
        with contextlib.ExitStack() as held:
            if self.rank == 0:
                # A store may be read-only, or out of reach, which reading will show.
                with contextlib.suppress(StoreUnavailable):
                    held.enter_context(lease(store, ref))
            yield

    def run_to_verdict(self, work: Callable[[], Any]) -> tuple[Verdict, Any]:
        """The result of the work. Every error becomes a verdict: the other ranks must hear of it."""
        try:
            return Verdict(), work()
        except CommitGoneError as error:
            if self.rank == 0:
                return Verdict(Outcome.GONE, str(error)), None
            # Rank 0 has read it, and holds it: this rank sees an older state of the store. Where it was pruned after
            # all, for there was no lease to be had, rank 0 finds that out when it is tried again.
            return Verdict(Outcome.UNAVAILABLE, f"rank {self.rank} does not see what rank 0 sees: {error}"), None
        except DamagedCommitError as error:
            part = error.writer if isinstance(error, DamagedPartError) else None
            certain = isinstance(error, TensorsMissingError)
            return Verdict(Outcome.DAMAGED, str(error), part, certain), None
        except StoreUnavailable as error:
            return Verdict(Outcome.UNAVAILABLE, str(error)), None
        except ConfigError as error:
            return Verdict(Outcome.REFUSED, str(error)), None
        except Exception as error:
            return Verdict(Outcome.BROKEN, f"rank {self.rank}: {type(error).__name__}: {error}"), None

    def _mark_damage(self, damage: Damage, verdict: Verdict) -> Verdict:
        """The verdict, unless the damage cannot be marked: the commit would count again for the next generation."""
        marked = self.run_to_verdict(lambda: self._on_damage(damage))[0] if self.rank == 0 else Verdict()
        marked = self.broadcast(marked)
        return verdict if marked.outcome is Outcome.DONE else marked

    def _confirm_damage(
        self, ref: CommitRef, tier: int, verdicts: Sequence[Verdict], files: bool
    ) -> tuple[Verdict, Damage | None]:
        """Settle damage that some ranks found: ranks of other hosts, where there are any, read the same."""
        hosts, certain = self._gather_hosts(), [v for v in verdicts if v.certain]
        findings = [DamageFinding(r, v.part, v.error) for r, v in enumerate(verdicts) if v.outcome is Outcome.DAMAGED]
        unsettled, both = plan_rereads(findings, hosts), find_confirmed_damage(findings, hosts)
        if certain or not unsettled:
            verdict = certain[0] if certain else verdicts[findings[0].rank]
            return verdict, Damage(ref, tier, verdict.error, hosts[verdicts.index(verdict)])
        if both is None:
            mine = {n: q.finding.part for n, q in enumerate(unsettled) if q.witness == self.rank}
            own = {n: self._read_again(ref, tier, part, files) for n, part in mine.items()}
            answers: dict[int, Verdict] = {n: v for some in self.all_gather(own) for n, v in some.items()}
            both = next((q for n, q in enumerate(unsettled) if answers[n].outcome is Outcome.DAMAGED), None)
            if both is None:
                return self._unconfirmed_verdict(ref, unsettled, answers), None
        finding = both.finding
        damage = Damage(ref, tier, finding.error, hosts[finding.rank], hosts[both.witness])
        return verdicts[finding.rank], damage

    def _unconfirmed_verdict(
        self, ref: CommitRef, unsettled: Sequence[WitnessedFinding], answers: Mapping[int, Verdict]
    ) -> Verdict:
        """An outage: of the store, if those who were to read again could not, or of the hosts that read wrongly."""
        worst = max(answers.values(), key=lambda v: v.outcome)
        if worst.outcome is not Outcome.DONE:
            return worst
        hosts = self._gather_hosts()
        wrong = (
            misread_message(hosts[f.rank], hosts[q.witness], part_label(f.part, ref.name), f.error)
            for q in unsettled
            for f in [q.finding]
        )
        error = "; ".join(wrong)
        if self.rank == 0:
            log.error("%s", error)
        return Verdict(Outcome.UNAVAILABLE, error)

    def _read_again(self, ref: CommitRef, tier: int, part: int | None, files: bool) -> Verdict:
        store = self._tiers[tier]
        return self.run_to_verdict(lambda: reread_from_storage(store, ref, part, files=files, threads=self._threads))[0]

    def _gather_hosts(self) -> list[str]:
        """The host of each rank; gathered only when damage was found, which all ranks know."""
        if self._hosts is None:
            self._hosts = self.all_gather(self._host)
        return self._hosts


def verify_on_all_ranks(store: Store, tier: int, ref: CommitRef, readers: ReadingRanks, threads: int) -> int:
    """Read every byte of a commit on a tier, and mark it as verified: how many bytes, by all ranks.

    Damage is marked once a rank of another host finds it too, where there is one; a commit that is whole is suspected
    no more. Raises on all ranks alike: DamagedCommitError (CommitGoneError: it was pruned), ConfigError for another
    format, StoreUnavailable, also where one host reads what another finds whole otherwise, and CheckpointError.
    """
    with readers.hold_lease(store, ref):
        answer = readers.run_to_verdict(lambda: len(read_commit(store, ref).parts)) if readers.rank == 0 else None
        verdict, parts = readers.broadcast(answer)
        _raise_unless_done(readers.judge_and_mark(ref, tier, [verdict], files=False)[0])
        share = range(readers.rank, parts, readers.size)
        verdict, count = readers.run_to_verdict(
            lambda: sum(
                verify_without_marking_damage(store, ref, part, drop_cache=True, threads=threads) for part in share
            )
        )
        answers = readers.all_gather((verdict, count))
        _raise_unless_done(readers.judge_and_mark(ref, tier, [verdict for verdict, _ in answers], files=True)[0])
        settled = (
            readers.run_to_verdict(lambda: dismiss_suspicions(store, *suspicions(store, ref)))
            if readers.rank == 0
            else None
        )
        _raise_unless_done(readers.broadcast(settled)[0])
    return sum(count for _, count in answers)


def _raise_unless_done(verdict: Verdict) -> None:
    errors: dict[Outcome, type[Exception]] = {
        Outcome.DAMAGED: DamagedCommitError,
        Outcome.GONE: CommitGoneError,
        Outcome.UNAVAILABLE: StoreUnavailable,
        Outcome.REFUSED: ConfigError,
        Outcome.BROKEN: CheckpointError,
    }
    if verdict.outcome in errors:
        raise errors[verdict.outcome](verdict.error)
