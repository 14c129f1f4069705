"""What an agent and the process that its workers are forked from tell each other: one packet each.

A request comes with open files: the assignment as JSON, the worker's log, and rank 0's listening socket for rank 0.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

MOST_BYTES = 65_536
"""Of a packet. Assignments may be longer, and so many that a socket would not take them: they come as files."""

MOST_FILES = 3


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class Fork(_Message):
    """Start a worker."""

    worker: int
    """Number of the request; the reports of this worker carry it."""
    name: str
    """What tools that list processes show."""
    environment: dict[str, str]
    """Added to the worker's."""


class Ready(_Message):
    """All is imported."""

    kind: Literal["ready"] = "ready"
    seconds: float


class Forked(_Message):
    """The worker is there."""

    kind: Literal["forked"] = "forked"
    worker: int
    pid: int


class NotForked(_Message):
    """There is no memory, or there are too many processes."""

    kind: Literal["not_forked"] = "not_forked"
    worker: int
    error: str


class Ended(_Message):
    """The worker is no more; its pid may be another process's from now on."""

    kind: Literal["ended"] = "ended"
    worker: int
    exit_code: int
    """Minus the signal's number if it was killed by one."""


Report = Annotated[Ready | Forked | NotForked | Ended, Field(discriminator="kind")]

REPORTS: TypeAdapter[Report] = TypeAdapter(Report)
