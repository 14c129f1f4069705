"""What is done between saves: who reads back which part, what is copied, and who prunes."""

from collections.abc import Sequence
from dataclasses import dataclass

from convoy.checkpoint.messages import AfterCommit
from convoy.checkpoint.save.queue import SaveStatus
from convoy.job.lineage import CommitRef


@dataclass(frozen=True)
class Busy:
    """What a rank's writer process, or that of any rank of the gang, has not ended of what it was asked last.

    By tier, so that one that hangs or is slow holds up only itself.
    """

    reading_back: frozenset[int] = frozenset()
    """Tiers, by index, on which it reads back a commit that was saved there."""
    copying: frozenset[int] = frozenset()
    """Those that it copies to."""

    @classmethod
    def told(cls, sums: SaveStatus) -> "Busy":
        """What any rank is busy with, from the sums over all of them."""
        reading_back, copying = (
            frozenset(tier for tier, ranks in enumerate(counts) if ranks)
            for counts in (sums.reading_back, sums.copying)
        )
        return cls(reading_back, copying)

    def __or__(self, other: "Busy") -> "Busy":
        return Busy(self.reading_back | other.reading_back, self.copying | other.copying)

    def __sub__(self, other: "Busy") -> "Busy":
        return Busy(self.reading_back - other.reading_back, self.copying - other.copying)

    def at(self, tier: int) -> "Busy":
        """What of it concerns a commit on that tier: what is then left out for it."""
        return Busy(self.reading_back & {tier}, self.copying - {tier})

    def turned(self, tiers: int) -> "Busy":
        """Busy with all else, on so many tiers: to ask for what was left out, and only that."""
        everywhere = frozenset(range(tiers))
        return Busy(everywhere, everywhere) - self


def chores(
    ref: CommitRef,
    tier: int,
    tiers: Sequence[str],
    rank: int,
    hosts: Sequence[str],
    turn: int,
    verify: bool,
    busy: Busy = Busy(),
) -> AfterCommit:
    """hosts: of each rank. turn: counts the commits, so that each part's reader changes.

    busy: of the gang, the same on every rank. Where some rank is still at an earlier commit, nothing is asked for now:
    a commit counts as verified, and is copied, only if every rank does its part. Were each to take the newest commit
    when it is done, ranks of unequal speed would do parts of different ones, and none would ever be whole.
    """
    part, away = part_to_read(rank, hosts, turn)
    copy_to = [uri for index, uri in enumerate(tiers) if index not in (tier, *busy.copying)]
    return AfterCommit(
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


def host_names(names: Sequence[str], per_host: int) -> list[str]:
    """Of each rank its host, told apart also where several have one name; names: as each rank's host calls itself."""
    numbers = [rank // per_host for rank in range(len(names))]
    if len(set(zip(names, numbers, strict=True))) == len(set(names)):
        return list(names)
    return [f"{name}-{number}" for name, number in zip(names, numbers, strict=True)]


def part_to_read(rank: int, hosts: Sequence[str], turn: int) -> tuple[int, bool]:
    """The part that a rank reads back, and whether another host wrote it. All ranks together read every part once."""
    per_host = hosts.count(hosts[rank])
    names = list(dict.fromkeys(hosts))
    in_blocks = [name for name in names for _ in range(per_host)] == list(hosts)
    # Shifting all by whole hosts keeps every part read once, where hosts have equally many ranks, one after another.
    shift = per_host * (1 + turn % (len(names) - 1)) if in_blocks and len(names) > 1 else 1
    part = (rank + shift) % len(hosts)
    return part, hosts[part] != hosts[rank]
