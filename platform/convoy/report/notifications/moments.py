"""The moments of a job that somebody may want to hear of, by its event log. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from convoy.config.notify import Moment
from convoy.job.events.gang import cause_in_words, first_cause
from convoy.job.events.registry import (
    INTERRUPT,
    Event,
    FailureDetected,
    GenerationEnded,
    GenerationStarted,
    NoticeReceived,
    Restored,
    ScriptResumed,
    ScriptStep,
    StepDone,
    Stopping,
    WorkerExited,
)
from convoy.report.analysis.lineage import by_generation, generation_starts
from convoy.report.analysis.outcome import ending_notice, generations, outcome_of, stop_reason

_TRAINS = (StepDone, ScriptStep, ScriptResumed)
_KINDS = (
    GenerationStarted, FailureDetected, GenerationEnded, NoticeReceived, Stopping, WorkerExited, Restored, *_TRAINS
)  # fmt: skip

REQUESTED = (INTERRUPT, "drain")
"""Sources of notices that are a person's wish, of which nobody has to be notified."""

BUDGET = ("max_hours", "max_cost_usd")
"""Reasons to stop."""


@dataclass(frozen=True)
class Occurrence:
    """The first time that a moment came."""

    moment: Moment
    t: float
    """Unix time."""
    generation: int
    cause: str = ""
    """The first cause, in one line; empty: there is none, or none is known."""


class MomentLog:
    """Keeps of a growing log what moments follow from: of the steps of a generation only the first."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._training: set[int] = set()

    def add(self, events: Iterable[Event]) -> bool:
        """Whether anything of it counts."""
        before = len(self.events)
        for event in events:
            if isinstance(event, _TRAINS):
                if event.generation in self._training:
                    continue
                self._training.add(event.generation)
            if isinstance(event, _KINDS):
                self.events.append(event)
        self.events.sort(key=lambda event: event.t)
        return len(self.events) > before


def occurrences(events: Sequence[Event], retries: int, since: int = 0) -> list[Occurrence]:
    """The first occurrence of each moment, by time.

    retries: of the gang's step in one run. since: generation with which notifications began; what was before is
    nobody's news.
    """
    first: dict[str, Occurrence] = {}
    logged = by_generation(events)
    newest_of_runs = {start.run: number for number, start in generation_starts(events).items()}
    for number, own in logged.items():
        if number < since:
            continue
        before = [e for generation, group in logged.items() if generation < number for e in group]
        for occurrence in _of_generation(number, own, before, retries):
            # The retries of an earlier run may have been others: what it tried again has not failed.
            if occurrence.moment != "failed" or number in newest_of_runs.values():
                first.setdefault(occurrence.moment, occurrence)
    return sorted(first.values(), key=lambda occurrence: occurrence.t)


def _of_generation(number: int, own: Sequence[Event], before: Sequence[Event], retries: int) -> Iterator[Occurrence]:
    start = next((e for e in own if isinstance(e, GenerationStarted) and e.node == 0), None)
    if start is not None and not before and start.parent_step is None:
        yield Occurrence("started", start.t, number)
    trains = next((e for e in own if isinstance(e, _TRAINS)), None)
    if trains is not None and before:
        yield Occurrence("resumed", trains.t, number, _why_resumed(own, before))
    notice = ending_notice(own)
    if notice is not None and notice.source not in REQUESTED:
        yield Occurrence("preempted", notice.t, number, _notice_in_words(notice))
    for event in own:
        match event:
            case FailureDetected(cause="hung"):
                yield Occurrence("stalled", event.t, number, cause_in_words(first_cause(event)))
            case Stopping(reason=reason) if reason in BUDGET:
                yield Occurrence("budget", event.t, number, stop_reason(event))
            case GenerationEnded(node=0, outcome="finished"):
                yield Occurrence("finished", event.t, number)
            case GenerationEnded(node=0, outcome="failed") if _is_last_attempt(own, start, retries):
                yield Occurrence("failed", event.t, number, _cause(own))


def _is_last_attempt(own: Sequence[Event], start: GenerationStarted | None, retries: int) -> bool:
    """A generation that fails is followed by the next one in place, or by Metaflow's next attempt, or by nothing. A
    second failure ends it while the next one forms."""
    actions = [e.action for e in own if isinstance(e, FailureDetected) and e.node == 0]
    return actions[-1:] != ["restart"] and (start is None or start.attempt >= retries)


def _cause(events: Sequence[Event]) -> str:
    cause = outcome_of(events).cause
    return cause_in_words(cause) if cause else ""


def _why_resumed(own: Sequence[Event], before: Sequence[Event]) -> str:
    """The first cause of the end of the generation before, or what the job's log calls it."""
    newest = max(event.generation for event in before)
    ended = outcome_of([e for e in before if e.generation == newest])
    if ended.cause and ended.state in ("failed", "running"):  # the second: what was restarted in place
        return cause_in_words(ended.cause)
    return generations([*before, *own])[-1].why


def _notice_in_words(notice: NoticeReceived) -> str:
    return f"node {notice.node} had a notice ({notice.source})" + (f": {notice.text}" if notice.text else "")
