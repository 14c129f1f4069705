"""Whether all ranks hold the same of what one of them writes for all, by its digest on each."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from convoy.storage.checksum import crc32c

if TYPE_CHECKING:
    import torch

SHORT_BYTES = 2**16
"""Tensors that are not longer are taken as they are."""

PIECE_WORDS = 2**20
"""Summed at once, with as much memory for the products, and for the weights."""

WORD_BYTES = 8

MAX_RANKS = 8
"""Named in an error."""


def condense(tensor: "torch.Tensor") -> "torch.Tensor":
    """Bytes on the tensor's device that stand for all of its own: itself, or a sum modulo 2**64 for each piece.

    The words of a long tensor are weighted and summed on its own device, without a copy on the host: a word that
    differs always shows, several almost surely. Equal on every device, at the pace of a copy.
    """
    import torch  # not by the writer process, which only compares digests

    data = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if len(data) <= SHORT_BYTES:
        return data
    if data.storage_offset() % WORD_BYTES:
        data = data.clone()
    whole = len(data) - len(data) % WORD_BYTES
    weights = torch.arange(1, 2 * PIECE_WORDS, 2, device=data.device)  # odd: no change of a word is lost
    pieces = data[:whole].view(torch.int64).split(PIECE_WORDS)
    sums = torch.stack([(piece * weights[: len(piece)]).sum() for piece in pieces])
    return torch.cat((sums.view(torch.uint8), data[whole:]))


def condensed_digest(condensed: "torch.Tensor") -> int:
    """The digest of a result of `condense`, on the host."""
    return crc32c(condensed.numpy().data)


def describe_difference(digests: Mapping[int, Mapping[str, int | None]]) -> str | None:
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
        f"{first}{more} is not the same on all ranks: {_rank_clause(others[first])} from rank {holders[first][0]}; "
        "one copy is saved for all ranks: make them equal, or gather what each rank has of its own into one value"
    )


def _rank_clause(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} differs"
    more = f" and {len(ranks) - MAX_RANKS} more" if len(ranks) > MAX_RANKS else ""
    return f"ranks {', '.join(str(rank) for rank in ranks[:MAX_RANKS])}{more} differ"
