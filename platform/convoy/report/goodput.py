"""Where a job's time went: how much of it the job got on, and what the rest was. Pure.

The time of each generation is cut into what the log tells of the whole gang, all of it and nothing twice: until the
first step is done the gang starts; until the last step it trains, and stands still for saves; what follows is its end,
or what a failure took. Of the time in which it trains, what each node waited for other ranks is taken apart.

A pause between two generations of one attempt belongs to the gang, which is there and forms anew; between attempts and
runs the machines may be gone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from convoy.events.types import AnyEvent, CheckpointSaved, Evaluated, RankThroughput, ScriptStep, StepDone, WorkerReady
from convoy.report.lineage import by_generation, lineage
from convoy.report.outcome import failure_of
from convoy.report.train_report import Generation, Goodput, NodeTime


def goodput(events: Sequence[AnyEvent], formed: Sequence[Generation]) -> Goodput | None:
    """Of the whole log; None for an empty one. formed: its generations, as `outcome.generations` gives them."""
    if not formed:
        return None
    nodes: dict[int, list[NodeTime]] = {}
    seconds: dict[int, float] = {}
    for each in times(events, formed):
        nodes.setdefault(each.node, []).append(each.time)
        seconds[each.generation] = each.time.seconds  # the same on all its nodes
    rows = tuple(_together(node, of) for node, of in sorted(nodes.items()))
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
    """Part of it that there would not have been without an interruption, besides the steps that were lost: the start of
    every generation but the first one, and how one was ended."""


def times(events: Sequence[AnyEvent], formed: Sequence[Generation]) -> list[GenerationTime]:
    """Of each node in each generation. formed: as for `goodput`."""
    logged, kept = by_generation(events), lineage(events)
    found = []
    for i, generation in enumerate(formed):
        following = formed[i + 1] if i + 1 < len(formed) else None
        own = logged[generation.number]
        shares = _shares(own, generation, _end(generation, following), kept.get(generation.number, -1.0))
        waited = _waited(own)
        interrupted = shares.ended + (shares.starting if i else 0.0)
        for node in range(generation.nodes):
            time = shares.with_waiting(waited.get(node, 0.0)).of(node)
            found.append(GenerationTime(generation.number, node, time, interrupted))
    return found


@dataclass(frozen=True)
class _Shares:
    """Seconds of one generation."""

    kept: float = 0.0
    """In steps that the job goes on from."""
    lost: float = 0.0
    """In other steps."""
    evaluating: float = 0.0
    """Outside the stretch of steps."""
    checkpoint: float = 0.0
    restarting: float = 0.0
    waiting: float = 0.0
    on_branch: bool = True
    """The job goes on from something of this generation."""
    starting: float = 0.0
    """Part of `restarting`: until the first step was done."""
    ended: float = 0.0
    """Part of the others: from what ended it against its will."""

    def with_waiting(self, waited: float) -> "_Shares":
        """A node's, whose ranks waited so long for others while they trained."""
        training = self.kept + self.lost
        part = min(waited / training, 1.0) if training else 0.0
        return _Shares(
            kept=self.kept * (1 - part),
            lost=self.lost * (1 - part),
            evaluating=self.evaluating,
            checkpoint=self.checkpoint,
            restarting=self.restarting,
            waiting=self.waiting + training * part,
            on_branch=self.on_branch,
            starting=self.starting,
            ended=self.ended,
        )

    def of(self, node: int) -> NodeTime:
        return NodeTime(
            node=node,
            productive_seconds=self.kept + (self.evaluating if self.on_branch else 0.0),
            recomputed_seconds=self.lost + (0.0 if self.on_branch else self.evaluating),
            checkpoint_seconds=self.checkpoint,
            restarting_seconds=self.restarting,
            waiting_seconds=self.waiting,
        )


def _together(node: int, parts: Sequence[NodeTime]) -> NodeTime:
    return NodeTime(
        node=node,
        productive_seconds=sum(p.productive_seconds for p in parts),
        recomputed_seconds=sum(p.recomputed_seconds for p in parts),
        checkpoint_seconds=sum(p.checkpoint_seconds for p in parts),
        restarting_seconds=sum(p.restarting_seconds for p in parts),
        waiting_seconds=sum(p.waiting_seconds for p in parts),
    )


def _end(generation: Generation, following: Generation | None) -> float:
    """Of the generation's time; what a superseded one did after that is nobody's time."""
    end = generation.started + generation.seconds
    if following is None:
        return end
    in_place = (following.run, following.attempt) == (generation.run, generation.attempt)
    return max(following.started if in_place else min(end, following.started), generation.started)


def _shares(own: Sequence[AnyEvent], generation: Generation, end: float, kept: float) -> _Shares:
    """kept: the last step that the job goes on from."""
    start = generation.started
    own = [e for e in own if e.t <= end]
    done = _steps(own, generation.parent_step or 0)
    saves = [(e.t, e.seconds) for e in own if isinstance(e, CheckpointSaved)]
    evaluations = [(e.t, e.seconds) for e in own if isinstance(e, Evaluated)]
    first, last = (done[0][0], done[-1][0]) if done else (end, end)
    crossed = _crossing(done, kept) if done else end

    evaluated_before = min(_within(evaluations, start, first), first - start)
    saving_kept = min(_within(saves, first, crossed), crossed - first)
    saving_lost = min(_within(saves, crossed, last), last - crossed)
    # The evaluation of the last step that counts comes after it.
    of_kept = [(e.t, e.seconds) for e in own if isinstance(e, Evaluated) and e.step <= kept]
    evaluated_after = min(_within(of_kept, crossed, last), last - crossed - saving_lost)
    tail = _tail(generation, own, last, end, saves, evaluations)
    return _Shares(
        kept=crossed - first - saving_kept + tail.kept,
        lost=last - crossed - saving_lost - evaluated_after + tail.lost,
        evaluating=evaluated_before + evaluated_after + tail.evaluating,
        checkpoint=saving_kept + saving_lost + tail.checkpoint,
        restarting=first - start - evaluated_before + tail.restarting,
        waiting=tail.waiting,
        on_branch=kept >= (generation.parent_step or 0),
        starting=first - start - evaluated_before,
        ended=tail.restarting + (tail.checkpoint if generation.outcome == "preempted" else 0.0),
    )


def _tail(
    generation: Generation,
    own: Sequence[AnyEvent],
    last: float,
    end: float,
    saves: Sequence[tuple[float, float]],
    evaluations: Sequence[tuple[float, float]],
) -> _Shares:
    """What follows the last step that was logged."""
    if generation.outcome == "running":
        return _Shares(kept=end - last)  # the next step
    if generation.outcome in ("failed", "ended without a word"):
        settled = failure_of(own)
        failed = end if settled is None else min(max(settled.t - settled.silent_seconds, last), end)
        return _Shares(lost=failed - last, restarting=end - failed)
    saving = min(_within(saves, last, end), end - last)
    evaluating = min(_within(evaluations, last, end), end - last - saving)
    rest = end - last - saving - evaluating
    if generation.outcome == "preempted":
        return _Shares(checkpoint=saving, evaluating=evaluating, restarting=rest)
    return _Shares(checkpoint=saving, evaluating=evaluating, waiting=rest)


def _steps(own: Sequence[AnyEvent], parent_step: int) -> list[tuple[float, int]]:
    """(time, step) of the steps that were logged, and of the first one, by time and by step."""
    found = [(e.t, e.step) for e in own if isinstance(e, StepDone | ScriptStep)]
    ready = [e.t for e in own if isinstance(e, WorkerReady) and e.phase == "first_step" and e.rank == 0]
    if ready and (not found or found[0][1] > parent_step + 1):
        found.append((ready[0], parent_step + 1))
    return sorted(found)


def _crossing(done: Sequence[tuple[float, int]], kept: float) -> float:
    """When the last step that counts was done, by even pace between those that were logged."""
    before = done[0]
    for t, step in done:
        if step > kept:
            if step <= before[1] or kept <= before[1]:
                return before[0]
            return before[0] + (t - before[0]) * (kept - before[1]) / (step - before[1])
        before = (t, step)
    return before[0]


def _within(spans: Sequence[tuple[float, float]], after: float, until: float) -> float:
    """Seconds of those that ended in (after, until]."""
    return sum(seconds for t, seconds in spans if after < t <= until)


def _waited(own: Sequence[AnyEvent]) -> dict[int, float]:
    """By node, how long its ranks waited for others in their steps: the mean over those that told."""
    ranks: dict[tuple[int, int | None], float] = {}
    for e in own:
        if isinstance(e, RankThroughput):
            key = (e.node, e.rank)
            ranks[key] = ranks.get(key, 0.0) + e.waited_seconds
    nodes: dict[int, list[float]] = {}
    for (node, _), seconds in ranks.items():
        nodes.setdefault(node, []).append(seconds)
    return {node: sum(of) / len(of) for node, of in nodes.items()}
