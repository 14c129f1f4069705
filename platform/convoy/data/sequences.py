"""Fixed-length sequences over the token shards of one split.

Legend of shapes: b sequences of a batch, s tokens of a sequence.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from convoy.data.manifest import PreparedData, Split
from convoy.data.sampler import PADDING, rows_of_rank


def document_piece_spans(ends: npt.NDArray[np.int64], tokens: int, sequence_length: int) -> npt.NDArray[np.int64]:
    """[pieces, 2] First token and number of tokens of each, in order; as many as `sequence_length` + 1, at least two.

    ends: places of the tokens that end documents, ascending; what follows the last one is a document too. A document's
    pieces overlap by a token, which is the target of one and the input of the next.
    """
    firsts = np.concatenate(([0], ends + 1))
    lengths = np.append(ends + 1, tokens) - firsts
    counts = np.maximum(0, -(-(lengths - 1) // sequence_length))
    document = np.repeat(np.arange(firsts.size), counts)
    within = np.arange(document.size) - np.repeat(np.cumsum(counts) - counts, counts)
    start = within * sequence_length
    return np.stack([firsts[document] + start, np.minimum(lengths[document] - start, sequence_length + 1)], axis=1)


IGNORED = -100
"""Target of a token that no loss is taken of."""


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Model input and what it shall predict."""

    tokens_bs: npt.NDArray[np.int64]
    """0 in rows of padding, and after the end of a document that has a sequence of its own."""
    targets_bs: npt.NDArray[np.int64]
    """The next token; -100 in rows of padding, where documents are respected after the end of one, and beyond the end
    of one that has a sequence of its own."""
    documents_bs: npt.NDArray[np.int32] | None
    """Which document of its sequence each token belongs to, from 0; None where documents are not respected."""


class TokenSequences:
    """The split's tokens in one row, cut into overlapping windows of S + 1: sequence i starts at token i * S.

    Without packing a window is a piece of one document, of at most S + 1 tokens, and the rest of its sequence is
    padding. All tokens are read once to find where documents end; a piece's place takes 16 bytes of memory.
    """

    def __init__(
        self,
        manifest: PreparedData,
        folder: Path,
        split: Split,
        sequence_length: int,
        respect_documents: bool = False,
        packing: bool = True,
    ) -> None:
        """Map the shards; `folder` is what `ensure_local_data` gave. Raises OSError for one that cannot be mapped."""
        dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self._shards: list[npt.NDArray[np.integer]] = []
        for shard in manifest.shards:
            if shard.split == split and shard.tokens:
                mapped = np.memmap(folder / shard.path, dtype=dtype, mode="r")  # an absolute path stays as it is
                # Slices of a plain array are made several times as fast as those of a memmap.
                self._shards.append(np.asarray(mapped)[shard.first_token : shard.first_token + shard.tokens])
        self._ends = np.cumsum([shard.size for shard in self._shards])
        self.sequence_length = sequence_length
        self.n_samples = max(0, (manifest.tokens(split) - 1) // sequence_length)
        self._eos_id = manifest.eos_id
        self._respect_documents = respect_documents
        if manifest.eos_id is None and (respect_documents or not packing):
            raise ValueError("respect_documents, or no packing: the data has no end of documents")
        self._pieces = None
        if not packing:
            self._pieces = document_piece_spans(self._document_ends(), manifest.tokens(split), sequence_length)
            self.n_samples = len(self._pieces)

    def window(self, sample: int) -> npt.NDArray[np.integer]:
        """[S + 1] The tokens of one sample, fewer without packing. Raises IndexError outside range(n_samples)."""
        if not 0 <= sample < self.n_samples:
            raise IndexError(f"sample {sample}: must be in range({self.n_samples})")
        if self._pieces is None:
            return self._tokens_from(sample * self.sequence_length, self.sequence_length + 1)
        first, count = self._pieces[sample].tolist()
        return self._tokens_from(first, count)

    def _document_ends(self) -> npt.NDArray[np.int64]:
        """Places of the tokens that do."""
        befores = [int(end) - shard.size for end, shard in zip(self._ends, self._shards, strict=True)]
        ends = [before + np.flatnonzero(s == self._eos_id) for before, s in zip(befores, self._shards, strict=True)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *ends])

    def _tokens_from(self, first: int, count: int) -> npt.NDArray[np.integer]:
        """[count] Of all tokens, those from `first` on."""
        i = int(np.searchsorted(self._ends, first, side="right"))
        parts = []
        while count:
            shard = self._shards[i]
            start = first - (int(self._ends[i]) - shard.size)
            part = shard[start : start + count]
            parts.append(part)
            first, count, i = first + part.size, count - part.size, i + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def batch(self, samples: npt.NDArray[np.int64]) -> TokenBatch:
        """The sequences of sample ids [b]; -1 gives a row of padding."""
        windows = np.zeros((samples.size, self.sequence_length + 1), dtype=np.int64)
        lengths = np.zeros(samples.size, dtype=np.int64)
        for row, sample in enumerate(samples.tolist()):
            if sample != PADDING:
                window = self.window(sample)
                windows[row, : window.size], lengths[row] = window, window.size
        tokens_bs, targets_bs = windows[:, :-1].copy(), windows[:, 1:].copy()
        documents_bs = None
        if self._respect_documents:
            ends_bs = tokens_bs == self._eos_id
            # An end belongs to the document it ends: count the ends before each token.
            documents_bs = (np.cumsum(ends_bs, axis=1) - ends_bs).astype(np.int32)
            targets_bs[ends_bs] = IGNORED
        targets_bs[np.arange(1, self.sequence_length + 1) >= lengths[:, np.newaxis]] = IGNORED
        return TokenBatch(tokens_bs, targets_bs, documents_bs)


def validation_samples(
    n_samples: int, count: int, rank: int, world_size: int, micro_batch: int
) -> list[npt.NDArray[np.int64]]:
    """Ids of each pass of one rank over the same `count` held-out samples, spread evenly; -1 is padding.

    Equally many passes, equally large, on every rank. All samples where there are fewer than `count`.
    """
    chosen = np.arange(min(count, n_samples), dtype=np.int64)
    samples = np.append(chosen * n_samples // chosen.size, PADDING)
    return [samples[row] for row in rows_of_rank(rank, world_size, chosen.size, micro_batch)]
