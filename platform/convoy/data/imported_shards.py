"""Token shards made elsewhere: checked, divided into splits, and used where they lie."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from convoy.config.data import ShardsCorpus
from convoy.config.errors import ConfigError
from convoy.data.manifest import Shard
from convoy.data.sources import SourceFile, held_out

_CHUNK_TOKENS = 1 << 24
_ENOUGH_IDS = 256
"""That their pattern is no accident."""


def ready_made_shards(corpus: ShardsCorpus, files: list[SourceFile], validation_fraction: float) -> list[Shard]:
    """The files as shards, held out by file; of a single file its tail is held out, from an end of a document on.

    Reads every id. Raises ConfigError for an id that is not below the vocabulary, or a size that is not whole ids.
    """
    tokens = {file.name: _checked_tokens(corpus, file) for file in files}
    if len(files) == 1:
        return _tail_held_out(corpus, files[0], tokens[files[0].name], validation_fraction)
    validation = held_out([file.name for file in files], validation_fraction)
    return [
        Shard(split="validation" if file.name in validation else "train", path=file.location, tokens=tokens[file.name])
        for file in files
        if tokens[file.name]
    ]


def _tail_held_out(corpus: ShardsCorpus, file: SourceFile, tokens: int, fraction: float) -> list[Shard]:
    boundary = tokens - round(tokens * fraction)
    if corpus.eos_id is not None:
        ends = np.flatnonzero(_ids(corpus, file)[boundary:] == corpus.eos_id)
        boundary += int(ends[0]) + 1 if ends.size else 0
    return [
        Shard(split="train", path=file.location, tokens=boundary),
        Shard(split="validation", path=file.location, first_token=boundary, tokens=tokens - boundary),
    ]


def _checked_tokens(corpus: ShardsCorpus, file: SourceFile) -> int:
    itemsize = np.dtype(corpus.dtype).itemsize
    if file.size % itemsize:
        raise ConfigError(f"data.corpus.dtype = {corpus.dtype}: {file.location} has {file.size} bytes, not whole ids")
    for first, ids in _chunks(corpus, file):
        largest = int(ids.max())
        if largest >= corpus.vocab_size:
            place = first + int(np.argmax(ids == largest))
            raise ConfigError(
                f"data.corpus.vocab_size = {corpus.vocab_size}: {file.location} has the id {largest} at {place}"
            )
        if corpus.dtype == "uint16" and ids.size > _ENOUGH_IDS and not ids[1::2].any():
            raise ConfigError(
                f"data.corpus.dtype = uint16: every second id of {file.location} is 0, as in a file of uint32"
            )
    return file.size // itemsize


def _chunks(corpus: ShardsCorpus, file: SourceFile) -> Iterator[tuple[int, npt.NDArray[np.integer]]]:
    ids = _ids(corpus, file)
    for first in range(0, ids.size, _CHUNK_TOKENS):
        yield first, ids[first : first + _CHUNK_TOKENS]


def _ids(corpus: ShardsCorpus, file: SourceFile) -> npt.NDArray[np.integer]:
    dtype = np.dtype(corpus.dtype).newbyteorder("<")
    return np.memmap(file.location, dtype=dtype, mode="r") if file.size else np.empty(0, dtype)
