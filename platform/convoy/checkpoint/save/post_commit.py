"""The work after a commit, between saves: who reads back which part, what is copied, and who prunes."""

from collections.abc import Sequence
from dataclasses import dataclass

from convoy.checkpoint.messages import PostCommitRequest, PostCommitTask, PostCommitTaskDone
from convoy.checkpoint.save.queue import StatusCounts
from convoy.job.lineage import CommitRef


@dataclass(frozen=True)
class BusyTiers:
    """Work that the writer process of a rank, or of any rank of the gang, has not finished.

    By tier, so that a tier that hangs or is slow holds up only itself.
    """

    reading_back: frozenset[int] = frozenset()
    """Tiers, by index, on which it reads back a commit that was saved there."""
    copying: frozenset[int] = frozenset()
    """Those that it copies to."""

    @classmethod
    def from_sums(cls, sums: StatusCounts) -> "BusyTiers":
        """The work of any rank, from the sums over all of them."""
        reading_back, copying = (
            frozenset(tier for tier, ranks in enumerate(counts) if ranks)
            for counts in (sums.reading_back, sums.copying)
        )
        return cls(reading_back, copying)

    def __or__(self, other: "BusyTiers") -> "BusyTiers":
        return BusyTiers(self.reading_back | other.reading_back, self.copying | other.copying)

    def __sub__(self, other: "BusyTiers") -> "BusyTiers":
        return BusyTiers(self.reading_back - other.reading_back, self.copying - other.copying)

    def part_for_commit_on(self, tier: int) -> "BusyTiers":
        """The part that concerns a commit on that tier: it is left out for that commit."""
        return BusyTiers(self.reading_back & {tier}, self.copying - {tier})

    def complement(self, tier_count: int) -> "BusyTiers":
        """Busy with everything else, on so many tiers: to request what was left out, and only that."""
        everywhere = frozenset(range(tier_count))
        return BusyTiers(everywhere, everywhere) - self


IDLE = BusyTiers()


class PendingWork:
    """Work that the writer process has not finished: the newest commit for each kind of work on each tier, where the
    process keeps the order."""

    def __init__(self) -> None:
        self._commits: dict[tuple[PostCommitTask, str], CommitRef] = {}

    def add(self, request: PostCommitRequest) -> None:
        if request.verify_part is not None:
            self._commits["reading_back", request.tier] = request.ref
        self._commits.update((("copying", uri), request.ref) for uri in request.copy_to)

    def mark_done(self, report: PostCommitTaskDone) -> None:
        if self._commits.get((report.task, report.tier)) == report.ref:
            del self._commits[report.task, report.tier]

    def clear(self) -> None:
        self._commits.clear()

    @property
    def is_empty(self) -> bool:
        return not self._commits

    def tiers_with(self, task: PostCommitTask) -> list[str]:
        """Those on which some of it is left."""
        return [uri for kind, uri in self._commits if kind == task]

    @property
    def descriptions(self) -> list[str]:
        """The work that is left, for people."""
        ends = {"reading_back": "was not read back on {}", "copying": "was not copied to {} and read back there"}
        return [f"step {ref.step} {ends[task].format(uri)}" for (task, uri), ref in self._commits.items()]


def post_commit_request(
    ref: CommitRef,
    tier: int,
    tiers: Sequence[str],
    rank: int,
    hosts: Sequence[str],
    save_number: int,
    verify: bool,
    busy: BusyTiers = IDLE,
) -> PostCommitRequest:
    """hosts: of each rank. save_number: counts the saves, so that each part's reader changes.

    busy: of the gang, the same on every rank. Where some rank is still at an earlier commit, no rank does anything for
    this one: a commit counts as verified, and is copied, only if every rank does its part. Were each rank to take the
    newest commit when it is done, ranks of unequal speed would do parts of different ones, and none would be whole.
    """
    part, away = part_to_read(rank, hosts, save_number)
    copy_to = [uri for index, uri in enumerate(tiers) if index not in (tier, *busy.copying)]
    return PostCommitRequest(
        ref=ref,
        tier=tiers[tier],
        writer=rank,
        verify_part=part if verify and tier not in busy.reading_back else None,
        drop_cache=not away,
        copy_to=copy_to,
        verify_copies=part if verify and copy_to else None,
        prune=rank == 0,
        generation=ref.generation,
        hosts=list(hosts),
    )


def distinct_host_names(names: Sequence[str], per_host: int) -> list[str]:
    """The host of each rank, distinct also where several have one name. names: as each rank's host calls itself."""
    numbers = [rank // per_host for rank in range(len(names))]
    if len(set(zip(names, numbers, strict=True))) == len(set(names)):
        return list(names)
    return [f"{name}-{number}" for name, number in zip(names, numbers, strict=True)]


def part_to_read(rank: int, hosts: Sequence[str], save_number: int) -> tuple[int, bool]:
    """The part that a rank reads back, and whether another host wrote it. All ranks together read every part once."""
    per_host = hosts.count(hosts[rank])
    names = list(dict.fromkeys(hosts))
    in_blocks = [name for name in names for _ in range(per_host)] == list(hosts)
    # Shifting all by whole hosts keeps every part read once, where hosts have equally many ranks, one after another.
    shift = per_host * (1 + save_number % (len(names) - 1)) if in_blocks and len(names) > 1 else 1
    part = (rank + shift) % len(hosts)
    return part, hosts[part] != hosts[rank]
