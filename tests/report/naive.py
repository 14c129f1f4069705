"""Goodput, cost and incidents a second time, as simply as their definitions allow, to compare the product with.

The product cuts the time line of each generation and looks at when events were logged. This adds up the durations that
the events report, one kind after the other, and derives only the ends from times.
"""

from collections.abc import Sequence

from convoy.job.events.registry import (
    CheckpointSaved,
    Environment,
    Evaluated,
    Event,
    FailureDetected,
    GenerationStarted,
    NoticeReceived,
    RankThroughput,
    Restored,
    StepDone,
    WorkerReady,
)
from convoy.report.train_report import Generation

NAMES = ("productive", "recomputed", "checkpoint", "measuring", "restarting", "waiting", "other")


def last_kept(events: Sequence[Event]) -> dict[int, float]:
    """For each generation that the job goes on from, its last step that counts."""
    starts = {e.generation: (e.parent_generation, e.parent_step) for e in events if isinstance(e, GenerationStarted)}
    for e in events:
        if isinstance(e, Restored):
            starts[e.generation] = (e.from_generation, e.step)
    generation, limit, kept = max(starts), float("inf"), {}
    while generation not in kept:
        kept[generation] = limit
        parent, step = starts[generation]
        if parent is None or step is None:
            break
        generation, limit = parent, min(limit, step)
    return kept


def node_times(events: Sequence[Event], formed: Sequence[Generation]) -> dict[tuple[int, int], dict[str, float]]:
    """Seconds of each part by generation and node."""
    kept, found = last_kept(events), {}
    for i, generation in enumerate(formed):
        later = formed[i + 1] if i + 1 < len(formed) else None
        own = [e for e in events if e.generation == generation.number]
        end = max(e.t for e in own)
        if later is not None:
            together = (later.run, later.attempt) == (generation.run, generation.attempt)
            end = later.started if together else min(end, later.started)
        own = [e for e in own if e.t <= end]
        for node in range(generation.nodes):
            found[generation.number, node] = _node_time(own, generation, end, kept.get(generation.number, -1), node)
    return found


def _node_time(own: Sequence[Event], generation: Generation, end: float, kept: float, node: int) -> dict[str, float]:
    found = dict.fromkeys(NAMES, 0.0)
    steps = [e for e in own if isinstance(e, StepDone)]
    evaluations = [e for e in own if isinstance(e, Evaluated)]
    saves = [e for e in own if isinstance(e, CheckpointSaved)]
    if not steps:
        for evaluation in evaluations:
            found["productive" if evaluation.step <= kept else "recomputed"] += evaluation.seconds
        found["restarting"] = end - generation.started - sum(e.seconds for e in evaluations)
        return found
    first, last = steps[0], steps[-1]

    done, lost = 0.0, 0.0
    at = first.step
    for e in steps[1:]:  # those that were not logged took as long as the next one that was
        while at < e.step:
            at += 1
            if at <= kept:
                done += e.seconds
            else:
                lost += e.seconds
    for evaluation in evaluations:
        found["productive" if evaluation.step <= kept else "recomputed"] += evaluation.seconds
    found["checkpoint"] = sum(save.seconds for save in saves)

    ready = next((e.t for e in own if isinstance(e, WorkerReady) and e.phase == "first_step"), first.t)
    found["measuring"] = sum(e.t - ready for e in own if isinstance(e, Environment) and e.rank == 0 and e.t > ready)

    before = sum(e.seconds for e in evaluations if e.step < first.step)
    found["restarting"] = first.t - generation.started - before
    after = sum(e.seconds for e in [*evaluations, *saves] if e.step >= last.step)
    if len(steps) == 1:
        after += found["measuring"]
    tail = end - last.t - after  # in none of what events report
    if generation.outcome == "running":
        pace = last.seconds * (last.step - steps[-2].step if len(steps) > 1 else 1)
        done += min(tail, pace)
        found["waiting"] += max(tail - pace, 0.0)
    elif generation.outcome in ("failed", "ended without a word"):
        failure = next((e for e in own if isinstance(e, FailureDetected)), None)
        silent = 0.0 if failure is None else min(max(end - failure.t + failure.silent_seconds, 0.0), tail)
        found["restarting"] += silent
        lost += tail - silent
    elif generation.outcome == "preempted":
        found["restarting"] += tail
    else:
        found["waiting"] += tail

    waits: dict[int | None, float] = {}
    for e in own:
        if isinstance(e, RankThroughput) and e.node == node:
            waits[e.rank] = waits.get(e.rank, 0.0) + e.waited_seconds
    waited = min(sum(waits.values()) / len(waits), done + lost) if waits else 0.0
    part = waited / (done + lost) if done + lost else 0.0
    found["productive"] += done * (1 - part)
    found["recomputed"] += lost * (1 - part)
    found["waiting"] += waited
    found["other"] = end - generation.started - sum(found.values())
    return found


def goodput(events: Sequence[Event], formed: Sequence[Generation]) -> dict[int, dict[str, float]]:
    """Seconds of each part by node."""
    nodes: dict[int, dict[str, float]] = {}
    for (_, node), spent in node_times(events, formed).items():
        whole = nodes.setdefault(node, dict.fromkeys(NAMES, 0.0))
        for name, seconds in spent.items():
            whole[name] += seconds
    return nodes


def usd(events: Sequence[Event], formed: Sequence[Generation], per_hour: Sequence[float]) -> dict[str, float]:
    """Dollars by what the machines did. per_hour: the price in each generation."""
    found = dict.fromkeys(("productive", "recomputed", "measuring", "stalled", "idle"), 0.0)
    names = {"checkpoint": "stalled", "waiting": "stalled", "other": "stalled", "restarting": "idle"}
    for (generation, _), spent in node_times(events, formed).items():
        for name, seconds in spent.items():
            found[names.get(name, name)] += seconds / 3600 * per_hour[generation]
    return found


def incident_times(events: Sequence[Event], generation: int) -> tuple[float | None, float | None]:
    """Seconds until the job had recovered from the end of this generation, and until it was beyond it."""
    starts = [e.t for e in events if isinstance(e, GenerationStarted) and e.generation > generation]
    own = [e for e in events if e.generation == generation and (not starts or e.t <= starts[0])]
    notice = next((e.t for e in own if isinstance(e, NoticeReceived) and e.action in ("save_and_end", "end")), None)
    failure = next((e for e in own if isinstance(e, FailureDetected)), None)
    happened = notice if notice is not None else own[-1].t if failure is None else failure.t - failure.silent_seconds
    parent = next((e.parent_step for e in own if isinstance(e, GenerationStarted)), None) or 0
    last = max([parent, *(e.step for e in own if isinstance(e, StepDone | FailureDetected))])
    later = [e for e in events if isinstance(e, StepDone) and e.generation > generation]
    recovered = min((e.t for e in later), default=None)
    beyond = min((e.t for e in later if e.step > last), default=None)
    return (
        None if recovered is None else max(recovered - happened, 0.0),
        None if beyond is None else max(beyond - happened, 0.0),
    )
