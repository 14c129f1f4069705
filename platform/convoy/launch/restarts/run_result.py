"""How a run of a flow ended: from its exit code, the job's log, and what Metaflow kept of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from convoy.gang.decisions import INTERRUPTED, PREEMPTED
from convoy.gang.diagnosis.verdict import cause_message
from convoy.gang.notices.sources import DrainRequest, DrainUnreadableError, read_drain
from convoy.job.events.types import AnyEvent, FailureDetected, GenerationEnded, decode
from convoy.job.lineage import generation_name, generation_numbers, newest_commit, read_generation, read_history
from convoy.launch.restarts.policy import Ended, How
from convoy.report.analysis.outcome import outcome_of
from convoy.report.train_report import Outcome
from convoy.storage import Store

LOOK_BACK = 10
"""So many of a run's newest generations are looked at: no bug takes as many to show."""


@dataclass(frozen=True)
class JobFacts:
    """What the job's root has of one run."""

    step: int = 0
    """Of the newest checkpoint, or the last one that was done."""
    formed: int = 0
    """Generations of the run."""
    started: bool = False
    """The newest one had workers on at least one node."""
    outcome: Outcome | None = None
    """Of the newest one that has one."""
    causes: tuple[FailureDetected, ...] = ()
    """Oldest first."""
    drain: DrainRequest | None = None
    """The newest wish that a run of the job ends."""


@dataclass(frozen=True)
class FailedTask:
    """What Metaflow kept of a task that failed."""

    step: str = ""
    message: str = ""


def read_facts(store: Store, run: str) -> JobFacts:
    """What the job's root has of a run. run: its pathspec. Raises StoreUnavailable."""
    history = read_history(store)
    newest, run_id = newest_commit(history), run.rpartition("/")[2]
    own = [g for g, generation in sorted(history.generations.items()) if generation.formation.startswith(f"{run_id}/")]
    step, outcome, causes, started = newest.step if newest else 0, None, list[FailureDetected](), False
    for generation in own[-LOOK_BACK:]:
        events = read_log(store, generation, "agent")
        started = bool(events)
        if not events:
            continue
        outcome = outcome_of(events)
        if outcome.state == "stopped":  # of which rank 0 says why
            outcome = outcome_of([*events, *read_log(store, generation, "rank00000")])
        causes += _first_causes(events)
        step = max([step, *(event.step for event in events if isinstance(event, GenerationEnded))])
    return JobFacts(step, len(own), started, outcome, tuple(causes), _drain(store))


def gang_is_over(store: Store, run: str, step: str, failed: float) -> bool:
    """The newest gang of that step has finished, and the step goes on by itself. run: its pathspec.

    failed: Unix time at which an attempt of the step last failed: a gang that finished before does not count. Raises
    StoreUnavailable, and ObjectMissing and ValueError for a generation that cannot be read.
    """
    own = f"{run.rpartition('/')[2]}/"
    for number in reversed(generation_numbers(store)):
        formation = read_generation(store, generation_name(number)).formation
        if not formation.startswith(own):
            return False  # of a run before
        if formation.startswith(f"{own}{step}/"):
            events = read_log(store, number, "agent")
            return bool(events) and outcome_of(events).state in ("finished", "stopped") and events[-1].t > failed
    return False


def read_log(store: Store, generation: int, writer: str) -> list[AnyEvent]:
    """What all writers of that name wrote of a generation, by time: one on each node. Raises StoreUnavailable."""
    events: list[AnyEvent] = []
    for name in store.sizes(f"events/{generation:06d}/"):
        if re.match(rf"events/\d+/\d+/{writer}[./]", name):  # on S3 a log is a folder of pieces
            events += _decoded(store.read(name))
    return sorted(events, key=lambda event: event.t)


def how_it_ended(
    code: int, run: str | None, facts: JobFacts, task: FailedTask, *, late: str = "", outage: str = ""
) -> Ended:
    """What all of this says of a run.

    code: exit code of the flow's process. late: why the run was ended, if it had to be because its gang got no nodes.
    outage: the job's root could not be read, and why.
    """
    how = _how(code, run, facts, task, late, outage)
    cause = facts.causes[-1] if facts.causes and how == "failed" and _gang_failed(facts) else None
    return Ended(
        how=how,
        code=code,
        run=run,
        step=facts.step,
        message=late or _message(how, facts, task, cause) or outage,
        causes=facts.causes if cause else (),
        failed_step=task.step,
        lasting=cause is not None and not cause.retryable,
    )


def _how(code: int, run: str | None, facts: JobFacts, task: FailedTask, late: str, outage: str) -> How:
    outcome = facts.outcome
    if code == 0:
        if outcome is not None and outcome.state in ("stopped", "failed", "preempted"):  # the latter under `@catch`
            return outcome.state
        return "finished"
    if run is None:
        return "refused"
    if facts.drain is not None and facts.drain.run == run:
        return "drained"
    if late:
        return "waited"
    if outage:
        return "outage"
    if task.message.startswith((PREEMPTED, INTERRUPTED)):
        return "preempted"
    if facts.formed and not facts.started:
        return "waited"
    return "preempted" if outcome is not None and outcome.state == "preempted" else "failed"


def _message(how: How, facts: JobFacts, task: FailedTask, cause: FailureDetected | None) -> str:
    outcome = facts.outcome
    if how in ("stopped", "preempted") and outcome is not None and outcome.reason:
        return outcome.reason
    if how == "drained" and facts.drain is not None:
        return f"asked for on {facts.drain.host}"
    if task.message:
        return task.message
    return cause_message(cause) if cause else ""


def _gang_failed(facts: JobFacts) -> bool:
    """Rather than a step after it, or before."""
    return facts.outcome is not None and facts.outcome.state not in ("finished", "stopped")


def _first_causes(events: Sequence[AnyEvent]) -> list[FailureDetected]:
    """Node 0's word or, where it was lost, the first of the others'."""
    failures = [event for event in events if isinstance(event, FailureDetected)]
    return ([event for event in failures if event.node == 0] or failures)[:1]


def _decoded(data: bytes) -> list[AnyEvent]:
    events = []
    for line in data.splitlines():
        try:
            events.append(decode(line))
        except ValidationError:  # another version's, or half a line
            continue
    return events


def _drain(store: Store) -> DrainRequest | None:
    try:
        return read_drain(store)
    except DrainUnreadableError:
        return None
