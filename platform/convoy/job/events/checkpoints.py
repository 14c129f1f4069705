"""Events of checkpoints: saved or not, read back, copied, pruned, restored."""

from typing import Literal

from convoy.job.events.event import Event


class CheckpointSaved(Event):
    """A commit exists; written when the gang learns of it, at the end of a step (rank 0)."""

    kind: Literal["checkpoint_saved"] = "checkpoint_saved"
    step: int
    attempt: str
    bytes: int
    tier: str = ""
    """URI of the job where the commit is."""
    seconds: float
    """For which training stood still: the call, and waiting for what it copies."""
    staged_seconds: float = 0.0
    """From the call until the state was copied aside."""
    committed_seconds: float = 0.0
    """From the call until the commit was known of."""


class CheckpointSkipped(Event):
    """A save that was due did not begin: one was being written, and another waited for it (rank 0)."""

    kind: Literal["checkpoint_skipped"] = "checkpoint_skipped"
    step: int
    under_way: list[int]
    """Steps of the saves that were under way."""


class CheckpointFailed(Event):
    """A save was not committed; the commit before it stands and training goes on (rank 0)."""

    kind: Literal["checkpoint_failed"] = "checkpoint_failed"
    step: int
    error: str
    tier: str = ""
    """URI of the job where it was to be."""
    retried_on: str | None = None
    """URI of the job on the tier that gets the same state now; None: given up."""


class CheckpointAlert(Event):
    """So many saves in a row were given up that a person should look (rank 0)."""

    kind: Literal["checkpoint_alert"] = "checkpoint_alert"
    step: int
    """Steps done; all after the newest commit would be lost."""
    failures: int
    """In a row."""
    newest: int | None
    """Step of the newest commit; None: there is none."""
    error: str
    """Of the last one."""


class CheckpointDamaged(Event):
    """A commit is not what was written; it is marked on that tier, and never read there again."""

    kind: Literal["checkpoint_damaged"] = "checkpoint_damaged"
    from_generation: int
    """The generation that made the commit."""
    step: int
    tier: str
    error: str
    """What is not as written."""


class CheckpointVerified(Event):
    """A rank read one part of a commit back; with no error every byte was as written."""

    kind: Literal["checkpoint_verified"] = "checkpoint_verified"
    from_generation: int
    step: int
    tier: str
    part: int
    parts: int
    """How many the commit has: it is verified when each one is."""
    seconds: float
    error: str | None = None
    """Why the part could not be read: an outage. Damage has its own event."""


class CheckpointMisread(Event):
    """A host read part of a commit otherwise than it was written, and another host found it whole: nothing is marked.
    Memory, network or a disk cache of that host is at fault."""

    kind: Literal["checkpoint_misread"] = "checkpoint_misread"
    from_generation: int
    step: int
    tier: str
    part: int
    host: str
    """That reads wrongly."""
    error: str


class CheckpointCopied(Event):
    """A commit exists on a further tier too, or `error` says why not (rank 0)."""

    kind: Literal["checkpoint_copied"] = "checkpoint_copied"
    from_generation: int
    step: int
    tier: str
    bytes: int
    seconds: float
    error: str | None = None


class CheckpointsPruned(Event):
    """What retention removed on one tier (rank 0)."""

    kind: Literal["checkpoints_pruned"] = "checkpoints_pruned"
    tier: str
    commits: list[tuple[int, int]]
    """(generation, step) of each."""
    attempts: int = 0
    """Saves without a commit whose files were removed."""
    bytes: int = 0
    error: str | None = None


class Restored(Event):
    """A rank's state came from a commit (rank 0)."""

    kind: Literal["restored"] = "restored"
    from_generation: int
    step: int
    seconds: float
    bytes: int = 0
    """Of the whole commit, every one of them checked by the rank that needed it."""
    tier: str = ""
