"""What a trial shows, from the gang's log and the time of the injection. Pure.

Agents and drill are on one host: their wall clocks are one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from convoy.checkpoint.format import Commit
from convoy.config.run import RunConfig
from convoy.drills.fault import Expectation, Fault
from convoy.gang.local_node import NodeResult
from convoy.job.events.registry import (
    CheckpointFailed,
    Event,
    FailureDetected,
    NoticeReceived,
    PeerSuspected,
    StepDone,
    WorkerExited,
)
from convoy.job.lineage import History
from convoy.report.analysis.lineage import events_on_branch, lineage
from convoy.report.fold import fold
from convoy.report.train_report import TrainReport

SLACK = 3
"""A single trial may take so many times what the median is to keep to."""

ALARMS = (FailureDetected, WorkerExited, PeerSuspected, NoticeReceived, CheckpointFailed)
"""Events by which something is taken to be wrong."""


@dataclass(frozen=True)
class Observation:
    """A trial that has ended."""

    fault: Fault
    config: RunConfig
    injected: Sequence[float]
    """Wall times, oldest first; empty: the fault was never put in."""
    events: Sequence[Event]
    """The whole log, by time."""
    history: History
    """Generations and commits of the job."""
    results: Sequence[Sequence[NodeResult]]
    """How each attempt ended, by node."""
    commit: Commit | None = None
    """The newest one that counts."""
    drained: bool = False
    """The drill ended the job itself, by a notice of its own."""

    @cached_property
    def report(self) -> TrainReport:
        return fold(self.events)

    @cached_property
    def surviving_events(self) -> list[Event]:
        """The events that led to the final state."""
        return events_on_branch(self.events, lineage(self.events))

    @property
    def failures(self) -> list[FailureDetected]:
        """First causes, each as logged by node 0, or by the nodes that were left."""
        causes = [e for e in self.events if isinstance(e, FailureDetected)]
        led = {e.generation for e in causes if e.node == 0}
        return [e for e in causes if e.node == 0 or e.generation not in led]

    @property
    def detected_s(self) -> float | None:
        return self._seconds_since_injection(e.t for e in self.events if self.fault.is_detection(e))

    @property
    def recovered_s(self) -> float | None:
        """None also where no generation had to be replaced."""
        return self._seconds_since_injection(e.t for e in self._steps_of_later_generations())

    @property
    def new_progress_s(self) -> float | None:
        return self._seconds_since_injection(
            e.t for e in self._steps_of_later_generations() if e.step > self._last_step_before_restart()
        )

    @property
    def steps_recomputed(self) -> int:
        """Over all generations that were replaced."""
        return sum(incident.steps_recomputed or 0 for incident in self.report.incidents)

    @property
    def step_seconds(self) -> float | None:
        """Median of a step, warm-up left out."""
        return self.report.step_time.total.median if self.report.step_time else None

    def samples_lost_and_repeated(self) -> tuple[int, int]:
        """Lost and repeated ones among those that led to the newest commit: by what it says of itself, and by the
        log."""
        if self.commit is None:
            return 0, 0
        batch, step, progress = self.config.train.global_batch, self.commit.step, self.commit.progress
        done = Counter(e.step for e in self.surviving_events if isinstance(e, StepDone))
        again = sum(count - 1 for count in done.values()) * batch
        sampler = self.commit.sampler
        off = 0 if sampler is None else sampler.next_sample - step * batch
        tokens = {e.tokens for e in self.surviving_events if isinstance(e, StepDone)}
        if len(tokens) == 1:  # else a step's share cannot be derived from the sum
            per_sample = tokens.pop() / batch
            off = max(off, round(progress.tokens / per_sample) - step * batch, key=abs)
        lost = max(-off, 0) + progress.skipped * batch
        return lost, max(again, off, 0)

    def _seconds_since_injection(self, times: Iterable[float]) -> float | None:
        """From the injection to the first of these that came after it."""
        if not self.injected:
            return None
        began = self.injected[0]
        return min((t - began for t in times if t >= began), default=None)

    def _generation_at_injection(self) -> int:
        """The newest one that had begun when the fault came."""
        return max((e.generation for e in self.events if e.t <= self.injected[0]), default=0) if self.injected else 0

    def _steps_of_later_generations(self) -> list[StepDone]:
        before = self._generation_at_injection()
        return [e for e in self.events if isinstance(e, StepDone) and e.generation > before]

    def _last_step_before_restart(self) -> int:
        before = self._generation_at_injection()
        return max((e.step for e in self.events if isinstance(e, StepDone) and e.generation <= before), default=0)


def trial_problems(trial: Observation, slack: float = SLACK) -> list[str]:
    """What is wrong with it, one line each, except for what only shows outside the log. slack: in place of SLACK."""
    expected = trial.fault.expected()
    lost, repeated = trial.samples_lost_and_repeated()
    wrong = [
        *_outcome_problems(trial, expected),
        *_first_cause_problems(trial, expected),
        *_false_alarm_problems(trial, expected),
        *_target_problems(trial, slack),
    ]
    wrong += [f"{lost} samples lost"] * bool(lost) + [f"{repeated} samples repeated"] * bool(repeated)
    if trial.commit is None:
        wrong.append("the job has no commit")
    elif not trial.drained and trial.commit.step != trial.config.train.steps:
        wrong.append(f"the newest commit is of step {trial.commit.step}, not {trial.config.train.steps}")
    return [*wrong, *trial.fault.own_problems(trial)]


def _outcome_problems(trial: Observation, expected: Expectation) -> list[str]:
    """How each attempt ended against how it should."""
    if trial.fault.repeated:
        first: tuple[str, ...] = ()  # any of the faults may have ended any attempt
    else:
        first = {"next attempt": ("failed",), "preempted": ("preempted",)}.get(expected.way, ())
    last = "preempted" if trial.drained else "finished"
    wanted = [*first, last]
    wrong = []
    if not trial.fault.repeated and len(trial.results) != len(wanted):
        wrong.append(f"{len(trial.results)} attempts, not {len(wanted)}: {_outcomes_text(trial.results[0])}")
    for attempt, results in enumerate(trial.results):
        is_last = attempt == len(trial.results) - 1
        allowed = _allowed_outcomes(trial, first, last, is_last=is_last)
        may_be_gone = not is_last or (trial.fault.repeated and trial.drained)
        for node, each in enumerate(results):
            if not (each.was_killed and may_be_gone) and (each.outcome is None or each.outcome.outcome not in allowed):
                wrong.append(
                    f"node {node} of attempt {attempt}: {_outcome_text(each)}, not {' or '.join(sorted(allowed))}"
                )
    generations = expected.generations or (1 if expected.way == "undisturbed" else 2)
    if not trial.fault.repeated and trial.history.newest != generations:
        wrong.append(f"{trial.history.newest} generations were formed, not {generations}")
    return wrong


def _allowed_outcomes(trial: Observation, first: Sequence[str], last: str, *, is_last: bool) -> set[str]:
    """Outcomes of an attempt that are as they should be."""
    if trial.fault.repeated:  # one more fault may have come while the drill had the job end
        return {last, "failed", "preempted"} if trial.drained or not is_last else {last}
    return {last} if is_last else set(first) or {"failed", "preempted"}


def _first_cause_problems(trial: Observation, expected: Expectation) -> list[str]:
    failures = trial.failures
    if not expected.causes:
        return []
    if not failures:
        return [f"no first cause was settled; expected {' or '.join(sorted(expected.causes))}"]
    cause, wrong = failures[0], []
    if cause.cause not in expected.causes:
        wrong.append(f"the first cause is {cause.cause}, not {' or '.join(sorted(expected.causes))}: {cause.reason}")
    if expected.node is not None and cause.failed_node != expected.node:
        wrong.append(f"the first cause names node {cause.failed_node}, not {expected.node}")
    if expected.rank is not None and cause.worker != expected.rank:
        wrong.append(f"the first cause names rank {cause.worker}, not {expected.rank}")
    return wrong


def _false_alarm_problems(trial: Observation, expected: Expectation) -> list[str]:
    """False ones: before there was a fault."""
    before = trial.injected[0] if trial.injected else float("inf")
    early = [e for e in trial.events if isinstance(e, ALARMS) and e.t < before and not _is_own_drain(trial, e)]
    wrong = [f"a false alarm: {e.kind} of node {e.node}, {_event_text(e)}" for e in early]
    if expected.way == "undisturbed":
        wrong += [f"the gang settled on a failure: {e.cause}, {e.reason}" for e in trial.failures if e.t >= before]
    return wrong


def _is_own_drain(trial: Observation, event: Event) -> bool:
    """The drill's own notice, by which it ends a job that would go on for ever."""
    return trial.drained and isinstance(event, NoticeReceived) and event.source == "drain"


def _target_problems(trial: Observation, slack: float) -> list[str]:
    limits = (
        ("detected", trial.detected_s, trial.fault.detection_target_seconds(trial)),
        ("recovered", trial.recovered_s, trial.fault.recovery_target_seconds(trial)),
    )
    wrong = []
    for what, seconds, target in limits:
        if target is not None and seconds is None:
            wrong.append(f"never {what}")
        elif target is not None and seconds is not None and seconds > slack * target:
            wrong.append(f"{what} after {seconds:.2f} s, more than {slack:g} times {target:g} s")
    return wrong


def _outcomes_text(results: Sequence[NodeResult]) -> str:
    return "; ".join(f"node {node} {_outcome_text(each)}" for node, each in enumerate(results))


def _outcome_text(result: NodeResult) -> str:
    if result.outcome is None:
        return result.error
    first = next(iter(result.outcome.message.splitlines()), "")
    return result.outcome.outcome + (f" ({first})" if first else "")


def _event_text(event: Event) -> str:
    return event.model_dump_json(exclude={"t", "generation", "node", "log_tail"}, exclude_defaults=True)
