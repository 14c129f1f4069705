"""What the log tells of checkpoints: which there are and where, how far each tier is behind, and what went wrong. Pure.

A commit is named by (generation that made it, step).
"""

from collections.abc import Collection, Iterator, Sequence

from convoy.job.events.types import (
    AnyEvent,
    CheckpointAlert,
    CheckpointCopied,
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSkipped,
    CheckpointsPruned,
    CheckpointVerified,
    GenerationStarted,
    Restored,
    StepDone,
)
from convoy.report.train_report import Alert, Checkpoint, SaveCounts, SaveTime, Tier
from convoy.stats.spread import spread

Ref = tuple[int, int]


def checkpoints(events: Sequence[AnyEvent], branch: Sequence[AnyEvent]) -> tuple[Checkpoint, ...]:
    """The commits of the living branch that a tier still has, oldest first.

    events: the whole log. branch: those events of it that lie on the living branch.
    """
    placed, whole = _places(events), _verified(events)
    found: dict[Ref, Checkpoint] = {}
    for e in branch:
        saved = _saved(e)
        if saved is not None:
            ref = (saved.generation, saved.step)
            places = tuple(tier for tier in placed.get(ref, {saved.tier: None}))
            verified = any((ref, tier) in whole for tier in places)
            found.setdefault(ref, saved.model_copy(update={"tiers": places, "verified": verified}))
    return tuple(c for c in sorted(found.values(), key=lambda c: c.step) if c.tiers)


def tiers(events: Sequence[AnyEvent], kept: Sequence[Checkpoint]) -> tuple[Tier, ...]:
    """How far behind the newest checkpoint each tier of the newest generation is, at the log's last event."""
    known = [e.tiers for e in events if isinstance(e, GenerationStarted) and e.tiers]
    now = max((e.t for e in events), default=0.0)
    return tuple(_tier(uri, events, kept, now) for uri in known[-1]) if known else ()


def counts(events: Sequence[AnyEvent]) -> SaveCounts:
    """Over all generations."""
    failed = [e for e in events if isinstance(e, CheckpointFailed)]
    return SaveCounts(
        skipped=sum(isinstance(e, CheckpointSkipped) for e in events),
        given_up=sum(e.retried_on is None for e in failed),
        moved=sum(e.retried_on is not None for e in failed),
        damaged=len({(e.from_generation, e.step) for e in events if isinstance(e, CheckpointDamaged)}),
    )


def save_time(events: Sequence[AnyEvent], alike: Collection[int]) -> SaveTime | None:
    """Of periodic saves in these generations, without the last one of each, beside which nothing is trained."""
    last = {e.generation: e.step for e in events if isinstance(e, StepDone)}
    saved = (e for e in events if isinstance(e, CheckpointSaved) and e.generation in alike)
    periodic = [e for e in saved if e.step < last.get(e.generation, 0)]
    stall = spread(e.seconds for e in periodic)
    durable = spread(e.committed_seconds for e in periodic if e.committed_seconds)
    return SaveTime(stall_seconds=stall, durable_seconds=durable) if stall else None


def alert(events: Sequence[AnyEvent]) -> Alert | None:
    """The newest alert, unless a checkpoint has been committed since."""
    last = next((e for e in reversed(events) if isinstance(e, CheckpointAlert | CheckpointSaved)), None)
    if not isinstance(last, CheckpointAlert):
        return None
    return Alert(t=last.t, step=last.step, failures=last.failures, newest=last.newest, error=last.error)


def _saved(e: AnyEvent) -> Checkpoint | None:
    """A commit, by the event of its save or, where its rank died before it could tell, of what started from it."""
    if isinstance(e, CheckpointSaved):
        return Checkpoint(
            t=e.t, step=e.step, generation=e.generation, bytes=e.bytes, tier=e.tier, seconds=e.seconds,
            staged_seconds=e.staged_seconds, committed_seconds=e.committed_seconds,
        )  # fmt: skip
    if isinstance(e, Restored):
        return Checkpoint(t=e.t, step=e.step, generation=e.from_generation, bytes=e.bytes, tier=e.tier, seconds=0.0)
    return None


def _places(events: Sequence[AnyEvent]) -> dict[Ref, dict[str, None]]:
    """Tiers that have each commit, in the order in which they got it."""
    found: dict[Ref, dict[str, None]] = {}
    for e in events:
        match e:
            case CheckpointSaved():
                found.setdefault((e.generation, e.step), {})[e.tier] = None
            case Restored():
                found.setdefault((e.from_generation, e.step), {})[e.tier] = None
            case CheckpointCopied(error=None):
                found.setdefault((e.from_generation, e.step), {})[e.tier] = None
            case CheckpointDamaged():
                found.setdefault((e.from_generation, e.step), {}).pop(e.tier, None)
            case CheckpointsPruned():
                for ref in e.commits:
                    found.setdefault(ref, {}).pop(e.tier, None)
    return found


def _verified(events: Sequence[AnyEvent]) -> set[tuple[Ref, str]]:
    """Commits, each with a tier on which every part was read back whole."""
    parts: dict[tuple[Ref, str], set[int]] = {}
    whole = set()
    for e in events:
        if isinstance(e, CheckpointVerified) and e.error is None:
            key = ((e.from_generation, e.step), e.tier)
            parts.setdefault(key, set()).add(e.part)
            if len(parts[key]) == e.parts:
                whole.add(key)
    return whole


def _tier(uri: str, events: Sequence[AnyEvent], kept: Sequence[Checkpoint], now: float) -> Tier:
    there = [c for c in kept if uri in c.tiers]
    newest = there[-1].step if there else None
    missing = [c for c in kept if newest is None or c.step > newest]
    tried = list(_attempts(uri, events))
    return Tier(
        uri=uri,
        newest_step=newest,
        behind_steps=missing[-1].step - (newest or 0) if missing else 0,
        behind_seconds=now - min(c.t for c in missing) if missing else 0.0,
        error=tried[-1] if tried else None,
    )


def _attempts(uri: str, events: Sequence[AnyEvent]) -> Iterator[str | None]:
    """What went wrong with each commit that was to come to this tier; None: nothing."""
    for e in events:
        if isinstance(e, CheckpointSaved) and e.tier == uri:
            yield None
        elif isinstance(e, CheckpointCopied | CheckpointFailed) and e.tier == uri:
            yield e.error
