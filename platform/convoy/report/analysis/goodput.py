"""Where a job's time went: in how much of it the job progressed, and what the rest was. Pure.

The time of each generation is cut into what the log reports about the whole gang, all of it and nothing twice. Until
the first step is done the gang starts. Between two steps it does what their events report: evaluations, saves and the
steps themselves, which take no longer than they say. What is left there is neither: after the first step of a
generation the machine is measured. What follows the last step is its end, or what a failure took; while the gang runs
it is the next step, for as long as the steps before it took, and then a wait. The time that each node waited for other
ranks is taken out of its steps.

A pause between two generations of one attempt belongs to the gang, which is there and forms anew; between attempts and
runs the machines may be gone.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from convoy.job.events.registry import (
    CheckpointSaved,
    Environment,
    Evaluated,
    Event,
    RankThroughput,
    ScriptStep,
    StepDone,
    WorkerReady,
)
from convoy.report.analysis.lineage import by_generation, lineage
from convoy.report.analysis.outcome import first_failure
from convoy.report.train_report import Generation, Goodput, NodeTime


def goodput(events: Sequence[Event], formed: Sequence[Generation]) -> Goodput | None:
    """The goodput of the whole log; None for an empty one. formed: its generations, by `outcome.generations`."""
    if not formed:
        return None
    nodes: dict[int, list[NodeTime]] = {}
    seconds: dict[int, float] = {}
    for each in generation_times(events, formed):
        nodes.setdefault(each.node, []).append(each.time)
        seconds[each.generation] = each.time.seconds  # the same on all its nodes
    rows = tuple(_sum_times(node, of) for node, of in sorted(nodes.items()))
    whole = sum(row.seconds for row in rows)
    share = sum(row.productive_seconds for row in rows) / whole if whole else 0.0
    return Goodput(share=share, seconds=sum(seconds.values()), nodes=rows)


@dataclass(frozen=True)
class GenerationTime:
    """A node's time in one generation."""

    generation: int
    node: int
    time: NodeTime
    interrupted_seconds: float
    """The part that an interruption caused, apart from `recomputed_seconds`: the start of every generation but the
    first one with the measurement that follows, waits and saves in steps that were lost, and how one was ended."""


def generation_times(events: Sequence[Event], formed: Sequence[Generation]) -> list[GenerationTime]:
    """The time of each node in each generation. formed: as for `goodput`."""
    logged, branch = by_generation(events), lineage(events)
    spent = []
    for i, generation in enumerate(formed):
        following = formed[i + 1] if i + 1 < len(formed) else None
        own = logged[generation.number]
        shares = _gang_time(own, generation, _end_time(generation, following), branch.get(generation.number, -1.0))
        waited = _waited_seconds_by_node(own)
        again = shares.starting + shares.measuring if i else 0.0
        for node in range(generation.nodes):
            part = shares.waited_share(waited.get(node, 0.0))
            interrupted = shares.ended + again + shares.undone + part * shares.lost
            spent.append(GenerationTime(generation.number, node, shares.node_time(node, part), interrupted))
    return spent


@dataclass
class _GangTime:
    """Seconds of one generation, the same on all its nodes apart from waits in steps."""

    productive: float = 0.0
    """Steps that the job kept."""
    lost: float = 0.0
    """Other steps."""
    evaluated: float = 0.0
    """Evaluations that the job kept."""
    evaluated_lost: float = 0.0
    checkpoint: float = 0.0
    undone: float = 0.0
    """Part of `checkpoint`: for saves of steps that were lost."""
    measuring: float = 0.0
    other: float = 0.0
    starting: float = 0.0
    """The time until the first step was done."""
    stopping: float = 0.0
    """The time from what ended the generation until its end."""
    waiting: float = 0.0
    ended: float = 0.0
    """The part of the others that a failure or a preemption took at the generation's end."""

    def waited_share(self, waited_seconds: float) -> float:
        """Share of its steps in which a node waited for others, given the seconds."""
        training = self.productive + self.lost
        return min(waited_seconds / training, 1.0) if training else 0.0

    def node_time(self, node: int, waited_share: float) -> NodeTime:
        return NodeTime(
            node=node,
            productive_seconds=self.productive * (1 - waited_share) + self.evaluated,
            recomputed_seconds=self.lost * (1 - waited_share) + self.evaluated_lost,
            checkpoint_seconds=self.checkpoint,
            measuring_seconds=self.measuring,
            restarting_seconds=self.starting + self.stopping,
            waiting_seconds=self.waiting + (self.productive + self.lost) * waited_share,
            other_seconds=self.other,
        )


_SECONDS = tuple(name for name in NodeTime.model_fields if name != "node")


def _sum_times(node: int, parts: Sequence[NodeTime]) -> NodeTime:
    return NodeTime(node=node, **{name: sum(getattr(part, name) for part in parts) for name in _SECONDS})


def _end_time(generation: Generation, following: Generation | None) -> float:
    """When the generation's time ends; what a superseded one did after that does not count."""
    end = generation.started + generation.seconds
    if following is None:
        return end
    in_place = (following.run, following.attempt) == (generation.run, generation.attempt)
    return max(following.started if in_place else min(end, following.started), generation.started)


class _DoneStep(NamedTuple):
    """A step that was done, by the log."""

    t: float
    step: float
    seconds: float = math.inf
    """How long it took, at most."""


@dataclass
class _StepSpan:
    """The time from one logged step to the next, before the first one, or after the last one."""

    begin: float
    end: float
    unaccounted: float = field(init=False)
    """Seconds of it that are not accounted for yet."""
    evaluations: list[Evaluated] = field(default_factory=list)
    saves: list[CheckpointSaved] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.unaccounted = max(self.end - self.begin, 0.0)

    def account_for(self, seconds: float) -> float:
        """Account for so many of the seconds, or for as many as are left."""
        taken = min(max(seconds, 0.0), self.unaccounted)
        self.unaccounted -= taken
        return taken


def _gang_time(events: Sequence[Event], generation: Generation, end: float, last_step: float) -> _GangTime:
    """last_step: the last one that the job kept."""
    events = [e for e in events if e.t <= end]
    done = _done_steps(events, generation.parent_step or 0) or [_DoneStep(end, math.inf)]
    spans = _step_spans(events, generation.started, done, end)
    measured = _measuring_time(events, done)
    shares = _GangTime()
    pace = done[0].seconds if math.isfinite(done[0].seconds) else 0.0
    for i, span in enumerate(spans):
        _account_saves_and_evals(shares, span, last_step)
        if i == measured.after:
            shares.measuring += span.account_for(measured.until - span.begin)
        if 0 < i < len(done):
            pace = _account_steps(shares, span, done[i - 1], done[i], last_step)
            if i == measured.after:
                shares.measuring += span.account_for(math.inf)
            shares.other += span.account_for(math.inf)
    shares.starting = spans[0].account_for(math.inf)
    if generation.outcome == "running":
        # Samples of the hardware and other events go on while the gang makes no progress.
        shares.productive += spans[-1].account_for(pace)
        shares.waiting += spans[-1].account_for(math.inf)
    else:
        _account_end(shares, spans[-1], generation.outcome, events, last_step)
    return shares


def _step_spans(events: Sequence[Event], start: float, done: Sequence[_DoneStep], end: float) -> list[_StepSpan]:
    """The spans before each step and after the last one, with the evaluations and saves that followed a step."""
    times = [start, *(each.t for each in done), end]
    spans = [_StepSpan(begin, end) for begin, end in pairwise(times)]
    steps = [each.step for each in done]
    for e in events:
        if isinstance(e, Evaluated):
            spans[bisect_right(steps, e.step)].evaluations.append(e)
        elif isinstance(e, CheckpointSaved):
            spans[bisect_right(steps, e.step)].saves.append(e)
    return spans


def _account_saves_and_evals(shares: _GangTime, span: _StepSpan, last_step: float) -> None:
    for save in span.saves:
        seconds = span.account_for(save.seconds)
        shares.checkpoint += seconds
        shares.undone += seconds if save.step > last_step else 0.0
    for evaluation in span.evaluations:
        seconds = span.account_for(evaluation.seconds)
        if evaluation.step <= last_step:
            shares.evaluated += seconds
        else:
            shares.evaluated_lost += seconds


def _account_steps(shares: _GangTime, span: _StepSpan, before: _DoneStep, after: _DoneStep, last_step: float) -> float:
    """Account for the steps between two logged ones; the last one that counts is placed by even pace. Returns their
    seconds."""
    steps = after.step - before.step
    seconds = span.account_for(after.seconds if steps == 1 else math.inf)
    part = min(max((last_step - before.step) / steps, 0.0), 1.0) if steps > 0 else float(after.step <= last_step)
    shares.productive += seconds * part
    shares.lost += seconds * (1 - part)
    return seconds


def _account_end(shares: _GangTime, span: _StepSpan, outcome: str, events: Sequence[Event], last_step: float) -> None:
    """Account for what follows the last logged step of a generation that has ended."""
    if outcome in ("failed", "ended without a word"):
        settled = first_failure(events)
        silent = 0.0 if settled is None else span.end - (settled.t - settled.silent_seconds)
        shares.lost += span.account_for(span.unaccounted - silent)
        shares.stopping = shares.ended = span.account_for(math.inf)
    elif outcome == "preempted":
        shares.stopping = span.account_for(math.inf)
        saved = sum(save.seconds for save in span.saves if save.step <= last_step)
        shares.ended = shares.stopping + min(saved, span.end - span.begin)
    else:
        shares.waiting = span.account_for(math.inf)


def _done_steps(events: Sequence[Event], parent_step: int) -> list[_DoneStep]:
    """The logged steps and the first one, by time and by step."""
    done = [_DoneStep(e.t, e.step, e.seconds) for e in events if isinstance(e, StepDone)]
    done += [_DoneStep(e.t, e.step) for e in events if isinstance(e, ScriptStep)]
    ready = _first_step_time(events)
    if ready is not None and (not done or min(done).step > parent_step + 1):
        done.append(_DoneStep(ready, parent_step + 1))
    return sorted(done)


class _MeasuringTime(NamedTuple):
    after: int
    """Stretch in which the machine was measured."""
    until: float
    """When that was over, by the log."""


def _measuring_time(events: Sequence[Event], done: Sequence[_DoneStep]) -> _MeasuringTime:
    """Each generation measures its machine after its first step that was not skipped, and then reports it."""
    ready = _first_step_time(events)
    after = 1 if ready is None else max(bisect_right([each.t for each in done], ready), 1)
    reported = [e.t for e in events if isinstance(e, Environment) and e.rank == 0]
    return _MeasuringTime(after, max(reported, default=-math.inf))


def _first_step_time(events: Sequence[Event]) -> float | None:
    """When the gang was ready, as rank 0 reports it: after the first step that was not skipped."""
    return next((e.t for e in events if isinstance(e, WorkerReady) and e.phase == "first_step" and e.rank == 0), None)


def _waited_seconds_by_node(events: Sequence[Event]) -> dict[int, float]:
    """By node, how long its ranks waited for others in their steps: the mean over the ranks that reported it."""
    ranks: dict[tuple[int, int | None], float] = {}
    for e in events:
        if isinstance(e, RankThroughput):
            key = (e.node, e.rank)
            ranks[key] = ranks.get(key, 0.0) + e.waited_seconds
    nodes: dict[int, list[float]] = {}
    for (node, _), seconds in ranks.items():
        nodes.setdefault(node, []).append(seconds)
    return {node: sum(of) / len(of) for node, of in nodes.items()}
