"""Writes the files of one dataset, and makes it exist."""

import hashlib
import uuid
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from convoy.data.manifest import DATA_PREFIX, FORMAT, DataFile, PreparedData, Shard, Split, manifest_name, read_manifest
from convoy.storage import Store, StoreUnavailable

SHARD_BYTES = 256 * 2**20

_PUBLISH_TRIES = 3


def id_dtype(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The smaller type that holds every id below `vocab_size`."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


@dataclass(frozen=True)
class Vocabulary:
    """What the ids of a dataset mean."""

    size: int
    eos_id: int | None
    eos_token: str | None
    dtype: Literal["uint16", "uint32"]


class DatasetWriter:
    """One attempt at a dataset, in a folder of its own: concurrent attempts at the same id never meet.

    Used as a context manager; what an attempt that was not published wrote is deleted.
    """

    def __init__(self, store: Store, data_id: str, vocabulary: Vocabulary, shard_bytes: int = SHARD_BYTES) -> None:
        self._store = store
        self._id = data_id
        self._attempt = uuid.uuid4().hex[:12]
        self._vocabulary = vocabulary
        self._files: list[DataFile] = []
        tokens = shard_bytes // np.dtype(vocabulary.dtype).itemsize
        self._streams = {split: _SplitBuffer(vocabulary.dtype, tokens) for split in ("train", "validation")}
        self._published = False

    def __enter__(self) -> "DatasetWriter":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._published:
            self._delete_below(f"{DATA_PREFIX}/{self._id}/{self._attempt}/")

    def add_file(self, name: str, data: bytes) -> None:
        """Write a file of the dataset."""
        self._store.write(f"{DATA_PREFIX}/{self._id}/{self._attempt}/{name}", data)
        self._files.append(DataFile(name=name, size=len(data), digest=content_digest(data)))

    def add_tokens(self, split: Split, ids: npt.NDArray[np.integer]) -> None:
        """Append ids to the split's shards."""
        stream = self._streams[split]
        while ids.size:
            ids = stream.add_until_full(ids)
            if stream.full:
                self._write_shard(split)

    def add_ready_made_shard(self, shard: Shard) -> None:
        """Refer to a ready-made shard."""
        self._streams[shard.split].shards.append(shard)

    def add_document(self, split: Split, ids: npt.NDArray[np.integer], text_bytes: int) -> None:
        """Append a document and its end."""
        self.add_tokens(split, ids)
        self.add_tokens(split, np.array([self._vocabulary.eos_id], dtype=np.int64))
        self._streams[split].documents += 1
        self._streams[split].text_bytes += text_bytes

    def publish(self, skipped_files: int = 0) -> PreparedData:
        """Write what is left and create the manifest. If another attempt was first, its dataset is given instead."""
        splits: tuple[Split, ...] = ("train", "validation")
        for split in splits:
            if self._streams[split].used:
                self._write_shard(split)
        manifest = PreparedData(
            format=FORMAT,
            id=self._id,
            attempt=self._attempt,
            dtype=self._vocabulary.dtype,
            vocab_size=self._vocabulary.size,
            eos_id=self._vocabulary.eos_id,
            eos_token=self._vocabulary.eos_token,
            shards=tuple(shard for split in splits for shard in self._streams[split].shards),
            files=tuple(self._files),
            documents={split: self._streams[split].documents for split in splits},
            text_bytes={split: self._streams[split].text_bytes for split in splits},
            skipped_files=skipped_files,
        )
        return self._create_manifest(manifest)

    @property
    def documents(self) -> int:
        """Added so far."""
        return sum(stream.documents for stream in self._streams.values())

    def _create_manifest(self, manifest: PreparedData) -> PreparedData:
        data = manifest.model_dump_json(indent=1).encode()
        for _ in range(_PUBLISH_TRIES):
            if self._store.create(manifest_name(self._id), data):
                self._published = True
                # Left over by attempts that were killed, or about to lose against this one.
                self._delete_below(f"{DATA_PREFIX}/{self._id}/", keep=(manifest.prefix, manifest_name(self._id)))
                return manifest
            first = read_manifest(self._store, self._id)
            if first is not None:
                return first
            self._store.delete(manifest_name(self._id))  # its shards are gone
        raise StoreUnavailable(f"{self._store.uri}/{manifest_name(self._id)}: cannot be created")

    def _write_shard(self, split: Split) -> None:
        stream = self._streams[split]
        ids = stream.drain()
        name = f"{split}-{len(stream.shards):05d}.bin"
        self.add_file(name, ids.tobytes())
        stream.shards.append(Shard(split=split, path=name, tokens=ids.size))

    def _delete_below(self, prefix: str, keep: tuple[str, ...] = ()) -> None:
        for name in self._store.sizes(prefix):
            if not name.startswith(keep or ("/",)):
                self._store.delete(name)


@dataclass
class _SplitBuffer:
    """The ids of one split that wait for their shard to be full."""

    dtype: str
    capacity: int
    used: int = 0
    shards: list[Shard] = field(default_factory=list)
    documents: int = 0
    text_bytes: int = 0
    _buffer: npt.NDArray[np.integer] = field(init=False)

    def __post_init__(self) -> None:
        self._buffer = np.empty(self.capacity, dtype=np.dtype(self.dtype).newbyteorder("<"))

    @property
    def full(self) -> bool:
        return self.used == self.capacity

    def add_until_full(self, ids: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        """Fill the buffer; gives what did not fit."""
        fitting = ids[: self.capacity - self.used]
        self._buffer[self.used : self.used + fitting.size] = fitting
        self.used += fitting.size
        return ids[fitting.size :]

    def drain(self) -> npt.NDArray[np.integer]:
        """What the buffer holds, valid until more is taken."""
        ids, self.used = self._buffer[: self.used], 0
        return ids


def content_digest(data: bytes) -> str:
    """BLAKE2b-128, hexadecimal."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
