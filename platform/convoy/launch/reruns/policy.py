"""How the runs of a job's flow ended: by exit code, the job's log and what Metaflow stored; and what follows."""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from convoy.gang.diagnosis.verdict import REPEATS, cause_message, repeat_count
from convoy.gang.messages import INTERRUPTED, PREEMPTED
from convoy.gang.notices.sources import DrainRequest, InvalidDrainError, read_drain
from convoy.job.events.log import read_events
from convoy.job.events.registry import Event, FailureDetected, GenerationEnded
from convoy.job.lineage import generation_name, generation_numbers, newest_commit, read_generation, read_history
from convoy.report.analysis.outcome import outcome_of
from convoy.report.train_report import Outcome
from convoy.storage import Store

DONE, FAILED, REFUSED, STOPPED = 0, 1, 2, 3
"""Exit codes of `convoy run`; ended by a signal, it is 128 and the signal's number."""

FRUITLESS_RUNS = 10
"""After so many failed runs in a row that brought the job no further, a person should look."""

How = Literal["finished", "stopped", "drained", "preempted", "waited", "outage", "failed", "refused"]
"""Finished; stopped by all ranks' agreement; drained by a person; preempted by a notice; ended because the gang never
got its nodes, or because the store was out of reach; failed; refused before it began."""


@dataclass(frozen=True)
class EndedRun:
    """How one run of the flow ended, as far as is known."""

    how: How
    code: int
    """Exit code of the flow's process."""
    run: str | None = None
    """Metaflow pathspec; None: it was never made."""
    step: int = 0
    """How far the job is: of the newest checkpoint, or the last step that was done."""
    message: str = ""
    """Why, in plain words; its first line says it."""
    causes: tuple[FailureDetected, ...] = ()
    """First causes of the run's generations, oldest first."""
    failed_step: str = ""
    """Of the flow, where Metaflow knows one."""
    lasting: bool = False
    """Another run would fail in the same way."""


@dataclass(frozen=True)
class RerunLimits:
    """How long, and how often."""

    pause_seconds: float = 10.0
    """Before the flow is started again; doubled for each run in a row that brought the job no further."""
    longest_pause_seconds: float = 600.0
    most_runs: int | None = None


@dataclass(frozen=True)
class Rerun:
    """Start the flow once more, after a pause."""

    pause_seconds: float


@dataclass(frozen=True)
class NoRerun:
    """Nothing more is started."""

    code: int
    why: str = ""
    """Where the last run's end alone does not say."""


def decide_rerun(history: Sequence[EndedRun], limits: RerunLimits, chance: float = 0.5) -> Rerun | NoRerun:
    """What follows from how the runs ended, oldest first.

    chance: from 0 to 1, spreads the pause by a quarter to both sides: of two gangs that take each other's machines one
    comes first.
    """
    newest = history[-1]
    match newest.how:
        case "finished":
            return NoRerun(DONE)
        case "stopped" | "drained":
            return NoRerun(STOPPED)
        case "refused" if len(history) == 1:
            return NoRerun(newest.code)
    if newest.lasting:
        return NoRerun(FAILED, "another run would fail in the same way")
    if same_failures(history) >= REPEATS:
        return NoRerun(FAILED, f"the same failure, {REPEATS} times, is not tried again")
    if failures_without_progress(history) >= FRUITLESS_RUNS:
        return NoRerun(FAILED, f"{FRUITLESS_RUNS} failed runs in a row brought the job no further")
    if limits.most_runs is not None and len(history) >= limits.most_runs:
        return NoRerun(FAILED, f"the job has had {limits.most_runs} run{'s' if limits.most_runs > 1 else ''}")
    doubled = limits.pause_seconds * 2.0 ** min(runs_without_progress(history), 32)
    return Rerun(min(doubled, limits.longest_pause_seconds) * (0.75 + chance / 2))


def same_failures(history: Sequence[EndedRun]) -> int:
    """How often the newest failure was seen; 0 for what is no fault of the program.

    A worker's counts wherever it was seen before. What fails outside the gang counts while it comes in a row.
    """
    newest = history[-1]
    if newest.how != "failed":
        return 0
    if newest.causes:
        *earlier, last = [cause for ended in history for cause in ended.causes]
        return repeat_count(earlier, last)
    return _count_leading_true(_failure_signature(ended) == _failure_signature(newest) for ended in reversed(history))


def failures_without_progress(history: Sequence[EndedRun]) -> int:
    """How many of the newest runs in a row failed without progress; preemptions neither count nor end the row."""
    tried = [progressed for ended, progressed in _with_progress(history) if ended.how != "preempted" or progressed]
    return _count_leading_true(not progressed for progressed in reversed(tried))


def runs_without_progress(history: Sequence[EndedRun]) -> int:
    """How many of the newest runs in a row brought the job no further."""
    return _count_leading_true(not progressed for _, progressed in reversed(_with_progress(history)))


def _with_progress(history: Sequence[EndedRun]) -> list[tuple[EndedRun, bool]]:
    """Each run, and whether the job came further by it than it ever was."""
    furthest, runs = 0, []
    for ended in history:
        runs.append((ended, ended.step > furthest))
        furthest = max(furthest, ended.step)
    return runs


def _count_leading_true(holds: Iterable[bool]) -> int:
    return sum(itertools.takewhile(bool, holds))


def _failure_signature(ended: EndedRun) -> tuple[object, ...]:
    """Numbers in a message may differ, and so may a run's name."""
    return ended.how, ended.failed_step, ended.step, re.sub(r"0x[0-9a-f]+|\d+", "#", ended.message)


LOOK_BACK = 10
"""So many of a run's newest generations are looked at: no bug takes as many to show."""


@dataclass(frozen=True)
class RunFacts:
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


def read_run_facts(store: Store, run: str) -> RunFacts:
    """What the job's root has of a run. run: its pathspec. Raises StoreUnavailable."""
    history = read_history(store)
    newest, run_id = newest_commit(history), run.rpartition("/")[2]
    own = [g for g, generation in sorted(history.generations.items()) if generation.formation.startswith(f"{run_id}/")]
    step, outcome, causes, started = newest.step if newest else 0, None, list[FailureDetected](), False
    for generation in own[-LOOK_BACK:]:
        events = read_events(store, generation, "agent")
        started = bool(events)
        if not events:
            continue
        outcome = outcome_of(events)
        if outcome.state == "stopped":  # of which rank 0 says why
            outcome = outcome_of([*events, *read_events(store, generation, "rank00000")])
        causes += _first_causes(events)
        step = max([step, *(event.step for event in events if isinstance(event, GenerationEnded))])
    return RunFacts(step, len(own), started, outcome, tuple(causes), _newest_drain_request(store))


def gang_is_over(store: Store, run: str, step: str, failed: float) -> bool:
    """The newest gang of that step has finished, and the step continues by itself. run: its pathspec.

    failed: Unix time at which an attempt of the step last failed: a gang that finished before does not count. Raises
    StoreUnavailable, and ObjectMissing and ValueError for a generation that cannot be read.
    """
    own = f"{run.rpartition('/')[2]}/"
    for number in reversed(generation_numbers(store)):
        formation = read_generation(store, generation_name(number)).formation
        if not formation.startswith(own):
            return False  # of a run before
        if formation.startswith(f"{own}{step}/"):
            events = read_events(store, number, "agent")
            return bool(events) and outcome_of(events).state in ("finished", "stopped") and events[-1].t > failed
    return False


def judge_ended_run(
    code: int, run: str | None, facts: RunFacts, task: FailedTask, *, late: str = "", outage: str = ""
) -> EndedRun:
    """What all of this says of a run.

    code: exit code of the flow's process. late: why the run was ended, if it had to be because its gang got no nodes.
    outage: the job's root could not be read, and why.
    """
    how = _judge_ending(code, run, facts, task, late, outage)
    cause = facts.causes[-1] if facts.causes and how == "failed" and _gang_failed(facts) else None
    return EndedRun(
        how=how,
        code=code,
        run=run,
        step=facts.step,
        message=late or _ending_message(how, facts, task, cause) or outage,
        causes=facts.causes if cause else (),
        failed_step=task.step,
        lasting=cause is not None and not cause.retryable,
    )


def _judge_ending(code: int, run: str | None, facts: RunFacts, task: FailedTask, late: str, outage: str) -> How:
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


def _ending_message(how: How, facts: RunFacts, task: FailedTask, cause: FailureDetected | None) -> str:
    outcome = facts.outcome
    if how in ("stopped", "preempted") and outcome is not None and outcome.reason:
        return outcome.reason
    if how == "drained" and facts.drain is not None:
        return f"requested on {facts.drain.host}"
    if task.message:
        return task.message
    return cause_message(cause) if cause else ""


def _gang_failed(facts: RunFacts) -> bool:
    """Rather than a step after it, or before."""
    return facts.outcome is not None and facts.outcome.state not in ("finished", "stopped")


def _first_causes(events: Sequence[Event]) -> list[FailureDetected]:
    """Node 0's word or, where it was lost, the first of the others'."""
    failures = [event for event in events if isinstance(event, FailureDetected)]
    return ([event for event in failures if event.node == 0] or failures)[:1]


def _newest_drain_request(store: Store) -> DrainRequest | None:
    try:
        return read_drain(store)
    except InvalidDrainError:
        return None
