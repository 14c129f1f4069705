"""What is done between saves: who reads back which part, what is copied, and who prunes."""

from collections.abc import Sequence

from convoy.checkpoint.messages import AfterCommit
from convoy.job.lineage import CommitRef


def chores(
    ref: CommitRef, tier: int, tiers: Sequence[str], rank: int, hosts: Sequence[str], turn: int, verify: bool
) -> AfterCommit:
    """hosts: of each rank. turn: counts the commits, so that each part's reader changes."""
    part, away = part_to_read(rank, hosts, turn)
    return AfterCommit(
        ref=ref,
        tier=tiers[tier],
        writer=rank,
        verify_part=part if verify else None,
        drop_cache=not away,
        copy_to=[uri for uri in tiers if uri != tiers[tier]],
        prune=rank == 0,
        generation=ref.generation,
    )


def part_to_read(rank: int, hosts: Sequence[str], turn: int) -> tuple[int, bool]:
    """The part that a rank reads back, and whether another host wrote it. All ranks together read every part once."""
    per_host = hosts.count(hosts[rank])
    names = list(dict.fromkeys(hosts))
    in_blocks = [name for name in names for _ in range(per_host)] == list(hosts)
    # Shifting all by whole hosts keeps every part read once, where hosts have equally many ranks, one after another.
    shift = per_host * (1 + turn % (len(names) - 1)) if in_blocks and len(names) > 1 else 1
    part = (rank + shift) % len(hosts)
    return part, hosts[part] != hosts[rank]
