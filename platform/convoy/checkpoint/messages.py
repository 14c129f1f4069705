"""Messages between a rank's training process and its writer process: one JSON line each. No torch here."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from convoy.checkpoint.format import Commit, PlainValue, TensorShard
from convoy.config.checkpoint import StoreConfig
from convoy.job.lineage import CommitRef
from convoy.storage.usage import BucketRequests


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class SetLayout(_Message):
    """The layout of the buffers from now on; it changes only with the state's structure."""

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
    """Coordinator only: the commit without its parts, files and time."""
    deadline_seconds: float
    """From the receipt of this message to the end of the part; for the coordinator, of the commit."""


class Hurry(_Message):
    """Somebody waits for the attempt: `WriterSetup.bytes_per_second` no longer limits it."""

    op: Literal["hurry"] = "hurry"
    attempt: str


class PostCommitRequest(_Message):
    """The work between saves, after a commit: it is read back, copied to other tiers, and old ones are pruned.

    Whether it is read back and copied is a decision of the whole gang: each rank does its part of either.
    """

    op: Literal["after_commit"] = "after_commit"
    ref: CommitRef
    tier: str
    """URI of the tier that has the commit."""
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
    """The host of each rank: where there are several, two must find damage. Empty: there is one."""


class Close(_Message):
    """Finish what is under way, then end."""

    op: Literal["close"] = "close"


Request = Annotated[SetLayout | WritePart | Hurry | PostCommitRequest | Close, Field(discriminator="op")]


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


PostCommitTask = Literal["reading_back", "copying"]
"""Work of all ranks together between saves: on the commit's own tier; or to and on a further one."""


class PostCommitTaskDone(_Message):
    """This rank's part of a task on one tier has ended, whether it failed or not."""

    kind: Literal["post_commit_task_done"] = "post_commit_task_done"
    task: PostCommitTask
    ref: CommitRef
    tier: str
    """The tier that is copied to, where it is a copy."""


class Pruned(_Message):
    """Writer 0: what retention removed on one tier."""

    kind: Literal["pruned"] = "pruned"
    tier: str
    commits: list[CommitRef]
    attempts: int = 0
    """Prefixes of shards without a commit that were removed."""
    bytes: int = 0
    error: str | None = None


class RequestsSent(_Message):
    """Requests of the process to buckets since its last report of this kind."""

    kind: Literal["requested"] = "requested"
    requests: list[BucketRequests]


Report = Annotated[
    Ready | PartWritten | Committed | SaveFailed | PartVerified | Copied | PostCommitTaskDone | Pruned | RequestsSent,
    Field(discriminator="kind"),
]

REQUESTS: TypeAdapter[Request] = TypeAdapter(Request)
REPORTS: TypeAdapter[Report] = TypeAdapter(Report)


URGENT = "urgent"
"""Option of a writer process that runs at normal priority, since somebody waits for what it writes."""


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
    """Limit on writing while nobody waits for it; None: as fast as the storage."""
