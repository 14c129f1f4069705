"""Which commits and files of a tier are no longer needed: pure functions over what the tier holds.

Kept are the newest `keep_last` commits of the lineage that were read back whole, everything newer than the oldest
of those, and one for each multiple of `keep_every_steps`. With fewer verified ones, all stay: the last good one too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from convoy.config.checkpoint import RetentionConfig
from convoy.job.lineage import CommitRef, History, counted_commits, on_branch

GRACE_SECONDS = 3600.0
"""Objects that count for nothing are removed at this age by the store's own clock; no save may take as long."""


@dataclass(frozen=True)
class AttemptSummary:
    """The files below one attempt's prefix."""

    ref: CommitRef
    name: str
    bytes: int
    changed: float
    """When the newest of them was written: Unix time by the store's own clock."""
    only_markers: bool = False
    """Nothing is there but its writers' word that they failed."""


@dataclass(frozen=True)
class Inventory:
    """The content of one tier."""

    commits: Mapping[CommitRef, float]
    """When each was made: Unix time by the store's own clock."""
    now: float
    """Now, by the same clock."""
    damaged: frozenset[CommitRef] = frozenset()
    verified: frozenset[CommitRef] = frozenset()
    leased: frozenset[CommitRef] = frozenset()
    attempts: Sequence[AttemptSummary] = field(default_factory=tuple)


def deletable_commits(
    history: History, tier: Inventory, policy: RetentionConfig, grace_seconds: float = GRACE_SECONDS
) -> list[CommitRef]:
    """The tier's commits that may go, oldest first. history: the generations, by the root."""
    chain = counted_commits(History(history.generations, frozenset(tier.commits), tier.damaged))
    floor = _oldest_step_to_keep(chain, tier.verified, policy.keep_last)
    protected = _milestones(chain, tier.verified, policy.keep_every_steps) | tier.leased

    def deletable(ref: CommitRef) -> bool:
        if ref in protected or ref.generation not in history.generations:
            return False
        if on_branch(history, ref):
            return floor is not None and ref.step < floor
        return tier.now - tier.commits[ref] > grace_seconds

    return sorted(filter(deletable, tier.commits), key=lambda ref: (ref.generation, ref.step))


def deletable_attempts(
    history: History, tier: Inventory, committed: Mapping[CommitRef, str], grace_seconds: float = GRACE_SECONDS
) -> list[AttemptSummary]:
    """Attempts whose files no commit names, and none will.

    committed: attempt of each commit of the tier that has more than one. Saves of a generation are settled in order, so
    of the newest one an attempt is over once the tier has its commit of that step or of a later one; a copy that is
    being made there is under a lease.
    """
    newest = history.newest
    settled = max((ref.step for ref in tier.commits if ref.generation == newest), default=-1)

    def deletable(attempt: AttemptSummary) -> bool:
        ref = attempt.ref
        if ref in tier.leased or ref.generation not in history.generations or _may_be_named(attempt, tier, committed):
            return False
        over = ref.generation == newest and ref.step <= settled
        return over or tier.now - attempt.changed > grace_seconds

    return [attempt for attempt in tier.attempts if deletable(attempt)]


def abandoned_attempts(
    generation: int, tier: Inventory, committed: Mapping[CommitRef, str], failed: frozenset[str]
) -> list[AttemptSummary]:
    """Attempts of the generation, whatever their age, whose names are in `failed`: their coordinator failed before it
    began to commit, so that no commit ever names them. Their markers stay, for ranks that have not read them."""
    return [
        attempt
        for attempt in tier.attempts
        if attempt.ref.generation == generation
        and attempt.name in failed
        and not attempt.only_markers
        and attempt.ref not in tier.leased
        and not _may_be_named(attempt, tier, committed)
    ]


def _may_be_named(attempt: AttemptSummary, tier: Inventory, committed: Mapping[CommitRef, str]) -> bool:
    """Whether the tier has a commit that names the attempt, or one that cannot be read."""
    return attempt.ref in tier.commits and committed.get(attempt.ref, attempt.name) == attempt.name


def _oldest_step_to_keep(chain: Sequence[CommitRef], verified: frozenset[CommitRef], keep_last: int) -> int | None:
    """Step of the oldest commit that must stay; None: all must."""
    good = [ref.step for ref in chain if ref in verified]
    return good[-keep_last] if len(good) >= keep_last else None


def _milestones(
    chain: Sequence[CommitRef], verified: frozenset[CommitRef], every_steps: int | None
) -> frozenset[CommitRef]:
    """For each multiple of `every_steps` the first commit from there on, before the next multiple; verified if any."""
    if every_steps is None:
        return frozenset()
    firsts: dict[int, CommitRef] = {}
    for ref in chain:
        multiple = ref.step // every_steps
        first = firsts.setdefault(multiple, ref)
        if first not in verified and ref in verified:
            firsts[multiple] = ref
    return frozenset(ref for multiple, ref in firsts.items() if multiple > 0)
