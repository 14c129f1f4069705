"""The jobs under a root, one line for each, from as little of a job's state as possible."""

import contextlib
import time
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from convoy.config.errors import first_mistake
from convoy.job.events.log import read_events
from convoy.job.events.registry import Event, GenerationStarted, MemoryPeak, RankThroughput, StepDone
from convoy.job.heartbeat import read_heartbeat
from convoy.job.lineage import generation_name, generation_numbers, read_generation
from convoy.job.record import JobRecord, read_config, read_record, target_steps
from convoy.report.analysis.outcome import state_word
from convoy.report.fold import fold
from convoy.storage import ObjectMissing, Store, StoreUnavailable

DAMAGED = "damaged"


class JobLine(BaseModel):
    """A job's state in one line."""

    model_config = ConfigDict(frozen=True)

    job: str
    state: str
    """The state as `convoy show` names it; or DAMAGED."""
    problem: str = ""
    """Why it is damaged; then the other fields are empty."""
    created: float | None = None
    """Unix time."""
    started: float | None = None
    """When its newest gang formed; Unix time."""
    step: int | None = None
    steps: int | None = None
    """Its number of steps; None: not known, as of a script."""
    usd: float | None = None
    """What it has cost; None: not known, as on machines without a price."""


def job_line(job: str, store: Store) -> JobLine:
    """The job's line, by the log of its newest generation; by the whole log where that is needed for its cost."""
    try:
        record = read_record(store)
        if record is None:
            return JobLine(job=job, state=DAMAGED, problem="JOB.json is missing")
        return _read_job_line(job, store, record)
    except ValidationError as error:
        problem = f"JOB.json: {first_mistake(error)}"  # the other objects have errors of their own
    except (ValueError, ObjectMissing, StoreUnavailable) as error:
        problem = (str(error).splitlines() or [type(error).__name__])[0]
    return JobLine(job=job, state=DAMAGED, problem=problem)


def _read_job_line(job: str, store: Store, record: JobRecord) -> JobLine:
    beat = read_heartbeat(store, time.time())  # first: a run that ends now is in the log then
    numbers = generation_numbers(store)
    newest = read_generation(store, generation_name(numbers[-1])) if numbers else None
    steps = target_steps(store, _read_newest_config(store, numbers))
    events = _read_newest_events(store, numbers)
    if any(isinstance(e, GenerationStarted) and e.rent is not None for e in events):
        report = fold(read_events(store), steps, beat)
    else:
        report = fold(_without_most_steps(events), steps, beat)
    total = report.cost.total if report.cost else None
    return JobLine(
        job=job,
        state=state_word(report),
        created=record.created,
        started=newest.created if newest else record.created,
        step=report.step,
        steps=steps,
        usd=None if total is None else float(total),
    )


def _read_newest_config(store: Store, numbers: list[int]) -> dict[str, Any]:
    """The configuration of the newest generation that has one: a rewind has none."""
    for number in reversed(numbers):
        digest = read_generation(store, generation_name(number)).config_hash
        if digest:
            with contextlib.suppress(ObjectMissing):  # of a job that was copied from a tier of an older version
                return read_config(store, digest)
            return {}
    return {}


def _without_most_steps(events: list[Event]) -> list[Event]:
    """The log of one generation with its newest step only: the others take time and change nothing."""
    steps = [e for e in events if isinstance(e, StepDone)]
    others = [e for e in events if not isinstance(e, StepDone | RankThroughput | MemoryPeak)]
    return sorted([*others, *steps[-1:]], key=lambda e: e.t)


def _read_newest_events(store: Store, numbers: list[int]) -> list[Event]:
    """The log of the newest generation that logged anything."""
    for number in reversed(numbers):
        events = read_events(store, number)
        if events:
            return events
    return []
