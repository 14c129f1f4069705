"""Every kind of event, and its line in the log. To add one, write its class in this folder and list it in `EVENTS`."""

import functools
import operator
from typing import Annotated, Any, cast

from pydantic import Field, TypeAdapter

from convoy.job.events.event import Event
from convoy.job.events.gang import (
    INTERRUPT,
    OUTAGE,
    PEER_LOST,
    UNFIT,
    EventsDropped,
    FailureDetected,
    FailureKind,
    FileSystemRent,
    GangStopped,
    GenerationEnded,
    GenerationStarted,
    NodeChecked,
    NoticeReceived,
    NoticeSources,
    ParamDtypeChoice,
    PeerSuspected,
    Rent,
    SlowNode,
    StorageBad,
    StorageGood,
    StoreRequests,
    WorkerExited,
    WorkerReady,
)
from convoy.job.events.hardware import HardwareSampled
from convoy.job.events.training import (
    CheckpointAlert,
    CheckpointCopied,
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointMisread,
    CheckpointSaved,
    CheckpointSkipped,
    CheckpointsPruned,
    CheckpointVerified,
    Environment,
    Evaluated,
    ExportFailed,
    MemoryPeak,
    ModelBuilt,
    NetworkProof,
    RankThroughput,
    Restored,
    SampleText,
    ScriptEndedLate,
    ScriptEvent,
    ScriptResumed,
    ScriptStep,
    StepDone,
    Stopping,
)

EVENTS: tuple[type[Event], ...] = (
    GenerationStarted, WorkerReady, Environment, NetworkProof, ModelBuilt, StepDone, RankThroughput, Evaluated,
    SampleText, CheckpointSaved, CheckpointSkipped, CheckpointFailed, CheckpointAlert, CheckpointDamaged,
    CheckpointVerified, CheckpointMisread, CheckpointCopied, CheckpointsPruned, Restored, ExportFailed, MemoryPeak,
    WorkerExited, PeerSuspected, FailureDetected, GangStopped, StorageBad, StorageGood, NodeChecked, SlowNode,
    NoticeSources, NoticeReceived, Stopping, ScriptResumed, ScriptStep, ScriptEvent, ScriptEndedLate, StoreRequests,
    HardwareSampled, EventsDropped, GenerationEnded,
)  # fmt: skip
"""Every class of events. A line that names another kind is of a newer version."""


def encode(event: Event) -> bytes:
    """One JSON line, without the newline. Non-finite numbers are written as strings."""
    return event.model_dump_json().encode()


def decode(line: bytes) -> Event:
    """The event of one line. Raises pydantic.ValidationError for what no version of Convoy wrote."""
    return _event_adapter(EVENTS).validate_json(line)


@functools.cache
def _event_adapter(events: tuple[type[Event], ...]) -> TypeAdapter[Event]:
    annotated, union = cast(Any, Annotated), functools.reduce(operator.or_, cast(Any, events))
    return TypeAdapter(annotated[union, Field(discriminator="kind")])
