"""What a rank's training process and its writer process tell each other: one JSON line each. No torch here."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from convoy.checkpoint.format import Commit, PlainValue, TensorShard
from convoy.config.checkpoint import StoreConfig
from convoy.job.lineage import CommitRef
from convoy.storage.usage import Requests


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class SetLayout(_Message):
    """What the buffers hold from now on; it changes only when the state's structure does."""

    op: Literal["layout"] = "layout"
    shards: list[TensorShard]
    file_bytes: list[int]
    """Length of each file of the part; the files lie one after the other in a buffer."""


class WritePart(_Message):
    """Write a staged buffer as this rank's part of an attempt; the coordinator also commits."""

    op: Literal["write"] = "write"
    tier: str
    """URI of the job on the tier to write to."""
    buffer: str
    """Path of the staged bytes, a file under /dev/shm that holds the layout's files one after the other."""
    generation: int
    step: int
    attempt: str
    writer: int
    writers: int
    values: list[PlainValue]
    replicas: dict[str, int] = Field(default_factory=dict)
    """Digests, as in the part record."""
    draft: Commit | None
    """Coordinator only: the commit but for its parts, files and time."""
    deadline_seconds: float
    """From the receipt of this message to the end of the part; for the coordinator, of the commit."""


class Hurry(_Message):
    """Somebody waits for the attempt: from now on `WriterSetup.bytes_per_second` does not hold for it."""

    op: Literal["hurry"] = "hurry"
    attempt: str


class AfterCommit(_Message):
    """What is done between saves, when a commit exists: read back, copied to other tiers, and old ones pruned.

    Whether it is read back and copied is a decision of the whole gang: each rank does a part of either, and leaves
    nothing undone that it was asked for.
    """

    op: Literal["after_commit"] = "after_commit"
    ref: CommitRef
    tier: str
    """Where the commit is."""
    writer: int
    """This rank."""
    verify_part: int | None = None
    """Read this part back on `tier` and check every byte; None: not now."""
    drop_cache: bool = False
    """Have the page cache forget the part first: its writer is on this node."""
    copy_to: list[str] = Field(default_factory=list)
    """Copy this rank's own part there; writer 0 also makes the commit there when all parts have come."""
    verify_copies: int | None = None
    """Read this part back on each of `copy_to`, of the newest commit that has come there; None: not now."""
    prune: bool = False
    """Writer 0 alone: apply retention on `tier` and `copy_to`."""
    generation: int
    """The gang's own generation: only the newest one prunes."""
    hosts: list[str] = Field(default_factory=list)
    """Of each rank: where there are several, damage needs the word of two. Empty: there is one."""


class Close(_Message):
    """End when what is under way has ended."""

    op: Literal["close"] = "close"


Request = Annotated[SetLayout | WritePart | Hurry | AfterCommit | Close, Field(discriminator="op")]


class Ready(_Message):
    """The process runs, and its stores have proven themselves, failed to, or not answered in time."""

    kind: Literal["ready"] = "ready"


class PartWritten(_Message):
    """This rank's files and part record are durable."""

    kind: Literal["part_written"] = "part_written"
    attempt: str
    bytes: int
    seconds: float


class Committed(_Message):
    """Coordinator: the commit exists."""

    kind: Literal["committed"] = "committed"
    attempt: str
    commit: Commit
    seconds: float
    """Since the request came."""


class SaveFailed(_Message):
    """This rank's part, or the commit, was given up."""

    kind: Literal["save_failed"] = "save_failed"
    attempt: str
    error: str
    """One line."""
    superseded: bool = False
    """Another gang has formed a newer generation: nothing this one commits would count."""


class PartVerified(_Message):
    """A part was read back: every byte is as written, or `error` says what is not."""

    kind: Literal["part_verified"] = "part_verified"
    ref: CommitRef
    tier: str
    part: int
    seconds: float
    error: str | None = None
    damaged: bool = False
    """The error is damage, not an outage."""
    misread_by: str = ""
    """The error is that of this host: it found damage, and this rank finds the part whole."""


class Copied(_Message):
    """Writer 0: the commit exists on another tier too, or `error` says why not."""

    kind: Literal["copied"] = "copied"
    ref: CommitRef
    to: str
    bytes: int = 0
    seconds: float
    error: str | None = None


Chore = Literal["reading_back", "copying"]
"""What all ranks do together between saves: on the commit's own tier, and to and on a further one."""


class ChoreDone(_Message):
    """What this rank was asked to do of a chore on one tier has ended, well or not."""

    kind: Literal["chore_done"] = "chore_done"
    chore: Chore
    ref: CommitRef
    tier: str
    """For copying, the one that is copied to."""


class Pruned(_Message):
    """Writer 0: what retention removed on one tier."""

    kind: Literal["pruned"] = "pruned"
    tier: str
    commits: list[CommitRef]
    attempts: int = 0
    """Prefixes of shards without a commit that were removed."""
    bytes: int = 0
    error: str | None = None


class Requested(_Message):
    """What the process has asked of buckets since it told before."""

    kind: Literal["requested"] = "requested"
    requests: list[Requests]


Report = Annotated[
    Ready | PartWritten | Committed | SaveFailed | PartVerified | Copied | ChoreDone | Pruned | Requested,
    Field(discriminator="kind"),
]

REQUESTS: TypeAdapter[Request] = TypeAdapter(Request)
REPORTS: TypeAdapter[Report] = TypeAdapter(Report)


URGENT = "urgent"
"""Option of a writer process that gives way to nobody: what it writes is waited for."""


class WriterSetup(_Message):
    """The first line a writer process reads."""

    tiers: list[str]
    """URIs of the job on each shared tier, in order."""
    store: StoreConfig
    keep_last: int
    keep_every_steps: int | None
    threads: int = 4
    """Chunks that are written or sent at once."""
    bytes_per_second: float | None = None
    """Most that is written while nobody waits for it; None: as much as the storage takes."""
