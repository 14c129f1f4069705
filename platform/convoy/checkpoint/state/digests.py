"""Digests of tensors, to see whether ranks hold the same bytes: equal on every device, at the pace of a copy.

The words of a long tensor are weighted and summed on its own device, without a copy on the host: a word that differs
always shows, several almost surely. A checksum in the sense of storage is taken of the sums.
"""

import torch

from convoy.storage.checksum import crc32c

SHORT_BYTES = 2**16
"""What is not longer is taken as it is."""

PIECE_WORDS = 2**20
"""Summed at once, with as much memory for the products, and for the weights."""

WORD_BYTES = 8


def condensed(tensor: torch.Tensor) -> torch.Tensor:
    """Bytes on the tensor's device that stand for all of its own: itself, or a sum modulo 2**64 for each piece."""
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


def digest(condensed: torch.Tensor) -> int:
    """Of what `condensed` gave, on the host."""
    return crc32c(condensed.numpy().data)
