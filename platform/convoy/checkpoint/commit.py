"""The commit object: the only thing that makes a checkpoint exist."""

import hashlib
import json

from pydantic import BaseModel, ConfigDict

from convoy.config.errors import ConfigError
from convoy.config.run import canonical_json
from convoy.job.lineage import CommitRef
from convoy.storage import ObjectMissing, Store

FORMAT_VERSION = 1


class DamagedCommitError(RuntimeError):
    """A commit, or what it names, is not what was written."""


class SamplerPosition(BaseModel):
    """Where the data stands: the next global sample of the keyed order, and its seed."""

    model_config = ConfigDict(frozen=True)

    seed: int
    next_sample: int


class Progress(BaseModel):
    """Counters of the job that go on over generations."""

    model_config = ConfigDict(frozen=True)

    step: int = 0
    """Optimizer steps done, skipped ones included."""
    tokens: int = 0
    """Consumed by those steps."""
    skipped: int = 0
    """Steps whose update was not applied."""
    seconds: float = 0.0
    """Gang time: wall time of the workers of all generations up to here."""


class Commit(BaseModel):
    """What a checkpoint holds and where its bytes are."""

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT_VERSION
    generation: int
    step: int
    attempt: str
    """Unique name of the save that wrote the shards."""
    parent: CommitRef | None
    """The commit that the generation started from."""
    files: dict[str, int]
    """Objects below `shards/<g>-<step>/<attempt>/`, and their bytes."""
    parameters: dict[str, list[int]]
    """Global shape of every tensor of the model."""
    world_size: int
    mesh: dict[str, int]
    """Names and sizes of the mesh's dimensions."""
    progress: Progress
    sampler: SamplerPosition
    rng: dict[str, str | int]
    """How randomness is derived; it is keyed, so there is no generator state to carry."""
    fingerprint: str
    """Of the data as the job uses it."""
    data_id: str
    """Which prepared data, by content."""
    config_hash: str
    versions: dict[str, str]
    created: float
    """Unix time."""
    checksum: str = ""
    """SHA-256 of the canonical JSON of all other fields."""

    @property
    def ref(self) -> CommitRef:
        return CommitRef(generation=self.generation, step=self.step)

    @property
    def shards(self) -> str:
        """Prefix of the object names of its files."""
        return shards_prefix(self.generation, self.step, self.attempt)


def shards_prefix(generation: int, step: int, attempt: str) -> str:
    return f"shards/{generation:06d}-{step:09d}/{attempt}/"


def create_commit(store: Store, commit: Commit) -> Commit:
    """Make the checkpoint exist. Raises FileExistsError if another commit has its generation and step."""
    sealed = commit.model_copy(update={"checksum": _checksum(commit)})
    created = store.create(commit.ref.name, sealed.model_dump_json(indent=1).encode())
    # A lost reply looks like "already there" too: the attempt tells our own commit from another's.
    if not created and read_commit(store, commit.ref).attempt != commit.attempt:
        raise FileExistsError(f"{store.uri}/{commit.ref.name} was made by another save")
    return sealed


def read_commit(store: Store, ref: CommitRef) -> Commit:
    """The commit. Raises DamagedCommitError if it is not what was written, ConfigError if a newer Convoy wrote it."""
    try:
        raw = store.read(ref.name)
    except ObjectMissing:
        raise DamagedCommitError(f"{store.uri}/{ref.name}: there is no such commit") from None
    _check_format(store, ref, raw)
    try:
        commit = Commit.model_validate_json(raw)
    except ValueError:
        raise DamagedCommitError(f"{store.uri}/{ref.name}: {len(raw)} bytes that are not a commit") from None
    if commit.checksum != _checksum(commit):
        raise DamagedCommitError(f"{store.uri}/{ref.name}: its checksum does not match its content")
    return commit


def check_files(store: Store, commit: Commit) -> None:
    """Raises DamagedCommitError unless every file of the commit is there with its size."""
    there = store.sizes(commit.shards)
    for name, size in commit.files.items():
        found = there.get(commit.shards + name)
        if found != size:
            raise DamagedCommitError(f"{store.uri}/{commit.shards}{name}: {found} bytes, the commit says {size}")


def _check_format(store: Store, ref: CommitRef, raw: bytes) -> None:
    """Before all else: a newer format may have fields that this version would take for damage."""
    try:
        found = json.loads(raw)["format"]
    except (ValueError, LookupError, TypeError):
        return  # not a commit at all, which reading it will tell
    if isinstance(found, int) and found > FORMAT_VERSION:
        raise ConfigError(
            f"commit = {store.uri}/{ref.name}: has format {found}; this version of Convoy reads up to {FORMAT_VERSION}"
        )


def check_parameters(commit: Commit, wanted: dict[str, list[int]]) -> None:
    """Raises ConfigError unless the model that is to be filled has the tensors that were saved, no more, no fewer.

    A load takes what it finds by name: a model with fewer layers would silently drop the others.
    """
    for name in sorted(commit.parameters.keys() | wanted.keys()):
        saved, own = commit.parameters.get(name), wanted.get(name)
        if saved != own:
            raise ConfigError(
                f"model: {name} is {_shape(own)} in this configuration, and {_shape(saved)} in the checkpoint of step "
                f"{commit.step}; keep the model of the job, or name a new job"
            )


def _shape(shape: list[int] | None) -> str:
    return "absent" if shape is None else str(tuple(shape))


def _checksum(commit: Commit) -> str:
    content = commit.model_dump(mode="json", exclude={"checksum"})
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()
