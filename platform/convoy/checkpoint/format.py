"""The objects of a checkpoint: the part record of each writer, and the commit. Imports neither torch nor boto.

`docs/reference/checkpoint-format.md` specifies the same for someone who writes another reader.
"""

import hashlib
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from convoy.config.base import UnixTime
from convoy.config.errors import ConfigError, first_mistake
from convoy.config.json_text import canonical_json, parse_json
from convoy.job.lineage import CommitRef
from convoy.storage.base import Component, OptionalComponent

FORMAT_VERSION = 2
"""1 was torch's own files, of Convoy 0.1."""

CHUNK_BYTES = 8 * 2**20
"""Unit of checksums, of ranged reads and of S3's multipart parts."""

FILE_BYTES = 8192 * CHUNK_BYTES
"""A writer begins a new file after this many bytes (64 GiB): S3 takes at most 10,000 parts an object."""

DRAFT = "draft"
"""Stands for an attempt's name as long as there is none."""

ALIGNMENT = 64
"""Every shard of a tensor begins at a multiple of this in its file; the bytes between are zero."""


class DamagedCommitError(RuntimeError):
    """A commit, or what it names, is not what was written."""


class _FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True)


class DataFile(_FrozenModel):
    """An immutable file of raw tensor bytes, as its part record describes it."""

    name: Component
    """Below the attempt's prefix, such as `00003.000.bin`."""
    bytes: int
    crc32c: list[int]
    """Checksum of each chunk of `chunk_bytes`, in order; the last one may be shorter."""


class TensorShard(_FrozenModel):
    """A box of a tensor: where it lies in the whole, and where its bytes (C order, little endian) are."""

    name: str
    """Path of the tensor in the state, keys joined with `.`."""
    dtype: str
    """Torch's name without `torch.`: `float32`, `bfloat16`, `int64`, `float8_e4m3fn`, ..."""
    shape: list[int]
    """Shape of the whole tensor; empty for a scalar."""
    offset: list[int]
    """Position of the box's first element in the whole, one number per dimension."""
    size: list[int]
    """Shape of the box, one number per dimension; may hold a zero."""
    file: int = Field(ge=0)
    """Index into the part's files."""
    start: int = Field(ge=0)
    """First byte in that file."""
    bytes: int = Field(ge=0)


class PlainValue(_FrozenModel):
    """A value that is no tensor, as JSON; see `convoy.checkpoint.state.values` for the tags of other types."""

    name: str
    value: Any


class PartRecord(_FrozenModel):
    """`part-<writer>.json`: all that one writer wrote, put after its files are durable."""

    format: int = FORMAT_VERSION
    generation: int
    step: int
    attempt: Component
    writer: int
    """Rank that wrote it."""
    writers: int
    """How many part records the attempt has."""
    chunk_bytes: int = Field(default=CHUNK_BYTES, gt=0)
    files: list[DataFile]
    shards: list[TensorShard]
    values: list[PlainValue] = Field(default_factory=list)
    """Only in the part of writer 0."""
    replicas: dict[str, int] = Field(default_factory=dict)
    """Digests of the tensors that this rank holds as others do, and of which one writes each, by name."""


class Digest(_FrozenModel):
    """Length and checksum of an object that a commit names."""

    bytes: int
    crc32c: int
    """Checksum of a part record's bytes; for a data file, of its chunks' checksums, each as 4 bytes, big endian."""


class SamplerPosition(_FrozenModel):
    """The position in the data: the next global sample of the keyed order, and its seed."""

    seed: int
    next_sample: int


class Progress(_FrozenModel):
    """Counters of the job that continue over generations."""

    step: int = 0
    """Optimizer steps done, skipped ones included."""
    tokens: int = 0
    """Consumed by those steps."""
    skipped: int = 0
    """Steps whose update was not applied."""
    seconds: float = 0.0
    """Gang time: wall time of the workers of all generations up to here."""


class TensorInfo(_FrozenModel):
    """A whole tensor."""

    dtype: str
    shape: list[int]


class Commit(_FrozenModel):
    """The content of a checkpoint and the places of its bytes. Its object's existence makes the checkpoint exist."""

    format: int = FORMAT_VERSION
    job: str = ""
    """Name of the job; empty outside a flow."""
    generation: int
    step: int
    attempt: Component
    """Unique name of the save that wrote the files; of a commit that is not made yet, `DRAFT`."""
    parent: CommitRef | None
    """The commit that the generation started from."""
    world_size: int
    mesh: dict[str, int] = Field(default_factory=dict)
    """Names and sizes of the mesh's dimensions."""
    parts: dict[Component, Digest] = Field(default_factory=dict)
    """Part records, by name below `shards`; one per writer."""
    files: dict[Component, Digest] = Field(default_factory=dict)
    """Data files of all parts, by name below `shards`."""
    tensors: dict[str, TensorInfo] = Field(default_factory=dict)
    """Every tensor of the state, by its path."""
    progress: Progress = Progress()
    sampler: SamplerPosition | None = None
    """None outside a flow."""
    rng: dict[str, str | int] = Field(default_factory=dict)
    """How randomness is derived; in a flow it is keyed, so there is no generator state to carry."""
    fingerprint: str = ""
    """Fingerprint of the data as the job uses it."""
    data_id: OptionalComponent = ""
    """Which prepared data, by content."""
    config_hash: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    created: UnixTime = 0.0
    """Unix time of the coordinator."""
    checksum: str = ""
    """SHA-256 of the canonical JSON of all other fields."""

    @property
    def ref(self) -> CommitRef:
        return CommitRef(generation=self.generation, step=self.step)

    @property
    def prefix(self) -> str:
        """Prefix of the object names of its parts and files."""
        return shards_prefix(self.generation, self.step, self.attempt)

    @property
    def bytes(self) -> int:
        """Size of all data files."""
        return sum(file.bytes for file in self.files.values())


def shards_prefix(generation: int, step: int, attempt: str) -> str:
    return f"shards/{generation:06d}-{step:09d}/{attempt}/"


def part_record_name(writer: int) -> str:
    return f"part-{writer:05d}.json"


def failure_note_name(writer: int) -> str:
    """The object by which a writer that can still reach the store aborts the attempt for all: one line of text."""
    return f"failed-{writer:05d}.txt"


def copy_failures_prefix(generation: int, step: int) -> str:
    """On a tier that a commit is copied to: of notes of writers that cannot do their share (`failure_note_name`)."""
    return shards_prefix(generation, step, "copying")


def removal_mark_name(ref: CommitRef) -> str:
    """Name of the object that exists while a commit, or an attempt of it, is being pruned."""
    return f"removing/{ref.stem}.json"


def file_name(writer: int, index: int) -> str:
    return f"{writer:05d}.{index:03d}.bin"


def encode_commit(commit: Commit) -> bytes:
    """The commit's object, with its checksum."""
    return commit.model_copy(update={"checksum": checksum(commit)}).model_dump_json(indent=1).encode()


def parse_commit(raw: bytes, where: str) -> Commit:
    """The commit of these bytes. Raises DamagedCommitError if it is not what was written, ConfigError for a format
    this version does not read.

    where: what to call the object in an error.
    """
    try:
        content = parse_json(raw)
        claimed, version = content.pop("checksum"), content["format"]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DamagedCommitError(f"{where}: {len(raw)} bytes that are not a commit") from None
    # Of what was read and not of the model, which passes over keys it does not know; so in every format.
    try:
        actual = _checksum(content)
    except RecursionError:  # nested almost too deep to be read
        actual = ""
    if claimed != actual:
        raise DamagedCommitError(f"{where}: its checksum does not match its content")
    _check_format_version(version, where)
    try:
        return Commit.model_validate_json(raw)
    except ValidationError as error:
        raise DamagedCommitError(f"{where}: is not a commit: {first_mistake(error)}") from None


def checksum(commit: Commit) -> str:
    return _checksum(commit.model_dump(mode="json", exclude={"checksum"}))


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def _check_format_version(version: Any, where: str) -> None:
    if version == 1:
        raise ConfigError(
            f"commit = {where}: has format 1, of Convoy 0.1, which this version does not read; "
            "export its model with that version, or name a new job"
        )
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"commit = {where}: has format {version}; this version of Convoy reads format {FORMAT_VERSION}"
        )
