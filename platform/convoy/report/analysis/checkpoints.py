"""The checkpoints of a log: which there are and where, how far behind each tier is, and what went wrong. Pure.

A commit is named by (generation that made it, step).
"""

from collections.abc import Collection, Sequence

from convoy.job.events.registry import (
    CheckpointAlert,
    CheckpointCopied,
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSkipped,
    CheckpointsPruned,
    CheckpointVerified,
    Event,
    GenerationStarted,
    Restored,
    StepDone,
)
from convoy.report.train_report import Checkpoint, SaveAlert, SaveCounts, SaveTime, Tier
from convoy.stats.spread import spread

Ref = tuple[int, int]


def checkpoints(events: Sequence[Event], branch: Sequence[Event]) -> tuple[Checkpoint, ...]:
    """The commits of the living branch that a tier still has, oldest first.

    events: the whole log. branch: those events of it that lie on the living branch.
    """
    placed, whole = _tiers_by_commit(events), _verified_commits(events)
    restorable: dict[Ref, Checkpoint] = {}
    for e in branch:
        saved = _checkpoint_of(e)
        if saved is not None:
            ref = (saved.generation, saved.step)
            places = tuple(tier for tier in placed[ref])
            verified = any((ref, tier) in whole for tier in places)
            restorable.setdefault(ref, saved.model_copy(update={"tiers": places, "verified": verified}))
    return tuple(c for c in sorted(restorable.values(), key=lambda c: c.step) if c.tiers)


def tiers(events: Sequence[Event], restorable: Sequence[Checkpoint]) -> tuple[Tier, ...]:
    """How far behind the newest checkpoint each tier of the newest generation is, at the log's last event."""
    configured = [e.tiers for e in events if isinstance(e, GenerationStarted) and e.tiers]
    now = max((e.t for e in events), default=0.0)
    return tuple(_tier(uri, events, restorable, now) for uri in configured[-1]) if configured else ()


def save_counts(events: Sequence[Event]) -> SaveCounts:
    """The saves that failed or were skipped, over all generations."""
    failed = [e for e in events if isinstance(e, CheckpointFailed)]
    return SaveCounts(
        skipped=sum(isinstance(e, CheckpointSkipped) for e in events),
        given_up=sum(e.retried_on is None for e in failed),
        moved=sum(e.retried_on is not None for e in failed),
        damaged=len({(e.from_generation, e.step) for e in events if isinstance(e, CheckpointDamaged)}),
    )


def save_time(events: Sequence[Event], generations: Collection[int]) -> SaveTime | None:
    """What periodic saves of these generations took, without the last one of each, during which nothing is trained."""
    last = {e.generation: e.step for e in events if isinstance(e, StepDone)}
    saved = (e for e in events if isinstance(e, CheckpointSaved) and e.generation in generations)
    periodic = [e for e in saved if e.step < last.get(e.generation, 0)]
    stall = spread(e.seconds for e in periodic)
    durable = spread(e.committed_seconds for e in periodic if e.committed_seconds)
    return SaveTime(stall_seconds=stall, durable_seconds=durable) if stall else None


def current_save_alert(events: Sequence[Event]) -> SaveAlert | None:
    """The newest alert, unless a checkpoint has been committed since."""
    last = next((e for e in reversed(events) if isinstance(e, CheckpointAlert | CheckpointSaved)), None)
    return SaveAlert.model_validate(last) if isinstance(last, CheckpointAlert) else None


def _checkpoint_of(e: Event) -> Checkpoint | None:
    """A commit, by the event of its save or, where its rank died before it could log that, by a restore from it."""
    if isinstance(e, CheckpointSaved):
        return Checkpoint(
            t=e.t, step=e.step, generation=e.generation, bytes=e.bytes, tier=e.tier, seconds=e.seconds,
            staged_seconds=e.staged_seconds, committed_seconds=e.committed_seconds,
        )  # fmt: skip
    if isinstance(e, Restored):
        return Checkpoint(t=e.t, step=e.step, generation=e.from_generation, bytes=e.bytes, tier=e.tier, seconds=0.0)
    return None


def placed_commit(e: Event) -> tuple[Ref, str, int] | None:
    """The commit that an event reports to be on a tier, that tier, and the commit's bytes."""
    match e:
        case CheckpointSaved():
            return (e.generation, e.step), e.tier, e.bytes
        case Restored() | CheckpointCopied(error=None):
            return (e.from_generation, e.step), e.tier, e.bytes
    return None


def _tiers_by_commit(events: Sequence[Event]) -> dict[Ref, dict[str, None]]:
    """Tiers that have each commit, in the order in which they got it."""
    places: dict[Ref, dict[str, None]] = {}
    for e in events:
        placed = placed_commit(e)
        if placed is not None:
            places.setdefault(placed[0], {})[placed[1]] = None
        elif isinstance(e, CheckpointDamaged):
            places.get((e.from_generation, e.step), {}).pop(e.tier, None)
        elif isinstance(e, CheckpointsPruned):
            for ref in e.commits:
                places.get(ref, {}).pop(e.tier, None)
    return places


def _verified_commits(events: Sequence[Event]) -> set[tuple[Ref, str]]:
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


def _tier(uri: str, events: Sequence[Event], restorable: Sequence[Checkpoint], now: float) -> Tier:
    newest = next((c.step for c in reversed(restorable) if uri in c.tiers), None)
    missing = [c for c in restorable if newest is None or c.step > newest]
    attempts = [e for e in events if isinstance(e, CheckpointSaved | CheckpointCopied | CheckpointFailed)]
    last = next((e for e in reversed(attempts) if e.tier == uri), None)
    return Tier(
        uri=uri,
        newest_step=newest,
        behind_steps=missing[-1].step - (newest or 0) if missing else 0,
        behind_seconds=now - min(c.t for c in missing) if missing else 0.0,
        error=None if last is None or isinstance(last, CheckpointSaved) else last.error,
    )
