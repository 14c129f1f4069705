"""Whether all ranks hold the same of what one of them writes for all, by its digest on each. No torch here."""

from collections.abc import Mapping

MOST_RANKS = 8
"""Named in an error."""


def difference(digests: Mapping[int, Mapping[str, int | None]]) -> str | None:
    """Names the first thing that is not the same on all ranks that hold it, and the ranks; None: there is none.

    digests: by rank, of what it holds, by name.
    """
    holders: dict[str, list[int]] = {}
    for rank in sorted(digests):
        for name in digests[rank]:
            holders.setdefault(name, []).append(rank)
    others = {
        name: [rank for rank in ranks if digests[rank][name] != digests[ranks[0]][name]]
        for name, ranks in holders.items()
    }
    named = [name for name, ranks in others.items() if ranks]
    if not named:
        return None
    first = named[0]
    more = f" (and {len(named) - 1} more like it)" if len(named) > 1 else ""
    return (
        f"{first}{more} is not the same on all ranks: {_listed(others[first])} from rank {holders[first][0]}; "
        "one copy is saved for all ranks: make them equal, or gather what each rank has of its own into one value"
    )


def _listed(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} differs"
    more = f" and {len(ranks) - MOST_RANKS} more" if len(ranks) > MOST_RANKS else ""
    return f"ranks {', '.join(str(rank) for rank in ranks[:MOST_RANKS])}{more} differ"
