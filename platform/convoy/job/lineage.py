"""Which commits count. Pure functions over names and generations; nothing here touches a store but `read_history`.

A commit counts if the newest generation made it, or an ancestor did at or below the step where the child branched
off. So a rewound branch, and whatever a superseded gang still writes, is never read. A job may hold its commits on
several tiers: a commit counts where it is not marked as damaged, and as long as one tier has it so.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from convoy.config.base import UnixTime
from convoy.config.errors import ConfigError, first_mistake
from convoy.storage import Store, StoreUnavailable, is_shared
from convoy.storage.base import OptionalComponent
from convoy.storage.thread_map import in_parallel

READERS = 16
"""Requests for small objects at a time."""


class CommitRef(BaseModel):
    """A commit by its name: the generation that made it, and the steps done."""

    model_config = ConfigDict(frozen=True)

    generation: int
    step: int

    @property
    def stem(self) -> str:
        """What its commit, its shards and its marks are named by."""
        return f"{self.generation:06d}-{self.step:09d}"

    @property
    def name(self) -> str:
        return f"commits/{self.stem}.json"


class Generation(BaseModel):
    """`generations/<g>.json`: one formation of the gang, made before any of its workers starts."""

    model_config = ConfigDict(frozen=True)

    generation: int
    parent: CommitRef | None
    """The commit it continues from; None: from the start."""
    formation: str
    """What formed it: the flow's task and attempt, or `rewind`."""
    nodes: int
    world_size: int
    config_hash: OptionalComponent
    created: UnixTime
    """Unix time."""
    rendezvous: str = ""
    """`host:port` of rank 0's store."""
    tiers: tuple[str, ...] = ()
    """URIs of the further tiers, which its commits may lie on alone."""
    control: str = ""
    """`host:port` where node 0's agent listens for the others'."""
    token_name: OptionalComponent = ""
    """The object below `tokens/` that holds the gang's token while the gang forms (`job/gang_tokens.py`). Older
    versions kept the token itself here; its gang has ended long ago, so it is not read."""

    @property
    def name(self) -> str:
        return generation_name(self.generation)


@dataclass(frozen=True)
class TierCommits:
    """What one tier holds."""

    commits: frozenset[CommitRef]
    damaged: frozenset[CommitRef] = frozenset()
    """Marked so: they do not count there."""

    @property
    def whole(self) -> frozenset[CommitRef]:
        return self.commits - self.damaged


@dataclass(frozen=True)
class History:
    """All generations of a job, and its commits on every tier."""

    generations: dict[int, Generation]
    commits: frozenset[CommitRef]
    """On the first tier, the root."""
    damaged: frozenset[CommitRef] = frozenset()
    """On the root."""
    others: tuple[TierCommits, ...] = ()
    """The further tiers, in order."""

    @property
    def tiers(self) -> tuple[TierCommits, ...]:
        return (TierCommits(self.commits, self.damaged), *self.others)

    @property
    def newest(self) -> int:
        """Number of the newest generation; 0 if there is none."""
        return max(self.generations, default=0)


def branch_ends(history: History) -> dict[int, int | None]:
    """The newest generation and its ancestors, newest first, each with its last step that counts; None: all do."""
    last_steps: dict[int, int | None] = {}
    generation, last_step = history.newest, None
    while generation in history.generations:
        last_steps[generation] = last_step
        parent = history.generations[generation].parent
        if parent is None:
            break
        generation, last_step = parent.generation, parent.step
    return last_steps


def on_branch(history: History, ref: CommitRef) -> bool:
    """Whether the commit was made by the newest generation, or by an ancestor before the child branched off."""
    last_steps = branch_ends(history)
    return ref.generation in last_steps and _at_or_below(ref.step, last_steps[ref.generation])


def counted_commits(history: History) -> list[CommitRef]:
    """The commits that count, oldest first. The next generation continues from the last one."""
    whole: dict[int, set[int]] = {}
    for ref in frozenset[CommitRef]().union(*(tier.whole for tier in history.tiers)):
        whole.setdefault(ref.generation, set()).add(ref.step)
    counted: list[CommitRef] = []
    for generation, last_step in branch_ends(history).items():
        # A generation whose parent was found damaged went on from an older commit. Should the parent turn up whole
        # after all, on a tier it was being copied to, then the generation's own commits did not come from it.
        below = counted[0].step - 1 if counted else None
        steps = (s for s in whole.get(generation, ()) if _at_or_below(s, last_step) and _at_or_below(s, below))
        counted = [CommitRef(generation=generation, step=step) for step in sorted(steps)] + counted
    return counted


def newest_commit(history: History) -> CommitRef | None:
    """The commit the next generation starts from; None: from the beginning, unless `all_commits_lost`."""
    counted = counted_commits(history)
    return counted[-1] if counted else None


def all_commits_lost(history: History) -> bool:
    """Whether the job had commits that counted, and has none now: then it must not start from the beginning."""
    if counted_commits(history):
        return False
    ancestors = (history.generations[generation] for generation in branch_ends(history))
    return any(g.parent is not None for g in ancestors) or any(
        on_branch(history, ref) for tier in history.tiers for ref in tier.commits
    )


def intact_tiers(history: History, ref: CommitRef) -> list[int]:
    """Indices of the tiers that hold the commit, and not marked as damaged; 0 is the root."""
    return [index for index, tier in enumerate(history.tiers) if ref in tier.whole]


def restore_candidates(history: History) -> list[tuple[CommitRef, list[int]]]:
    """What a restore tries, in order: the commits that count, newest first, each with its places."""
    return [(ref, intact_tiers(history, ref)) for ref in reversed(counted_commits(history))]


def read_history(store: Store, others: Sequence[Store] = ()) -> History:
    """The job's generations, and the names of its commits on the root `store` and on the `others`.

    Raises StoreUnavailable also where the root lacks a generation whose commits it has, and where it has less than the
    others stand on: then it is not the job's root, such as an empty folder where nothing is mounted. A further tier of
    the newest generation that has none is no more the job's.
    """
    # The root is read last: what came to another tier before has its generation on the root.
    held = tuple(_read_tier(tier) for tier in others)
    made = {tier.uri: set(generation_numbers(tier)) for tier in others}
    generations = _read_generations(store)
    root = _read_tier(store)
    if _missing_generations(root, generations):  # formed since the generations were listed, or gone
        generations = _read_generations(store)
    orphans = _missing_generations(root, generations)
    if orphans:
        raise StoreUnavailable(
            f"{store.uri} has commits of generation {min(orphans)}, and {generation_name(min(orphans))} is missing: "
            "without it nobody can know which commits count; put it back, for example by `convoy checkpoints copy` "
            "from another tier"
        )
    history = History({g.generation: g for g in generations}, root.commits, root.damaged, held)
    for tier, holding in zip(others, held, strict=True):
        unknown = made[tier.uri].union(ref.generation for ref in holding.commits) - history.generations.keys()
        if unknown:
            raise StoreUnavailable(
                f"{store.uri} lacks generation {min(unknown)} of the job, which {tier.uri} has: "
                "it is not mounted, or another job of this name was copied there"
            )
        if not made[tier.uri] and history.newest and tier.uri in history.generations[history.newest].tiers:
            raise StoreUnavailable(
                f"{tier.uri} has nothing of the job, whose generation {history.newest} saved there: is it mounted? "
                f"If it is gone for good: convoy checkpoints copy {store.uri} {tier.uri} begins it anew"
            )
    return history


def config_digest(history: History) -> str | None:
    """Hash of the configuration that the newest generation with workers ran with."""
    hashes = [g.config_hash for _, g in sorted(history.generations.items()) if g.config_hash]
    return hashes[-1] if hashes else None


def parse_commits(names: Iterable[str]) -> list[CommitRef]:
    """Commits by their object names; other names are not commits."""
    return list(_parse_refs("commits/", names))


def damaged_name(ref: CommitRef) -> str:
    """The object that marks a commit as damaged, on the tier it lies in."""
    return f"damaged/{ref.stem}.json"


def damaged_commits(store: Store) -> frozenset[CommitRef]:
    """The commits that are marked as damaged on this tier."""
    return frozenset(_parse_refs("damaged/", store.sizes("damaged/")))


def generation_name(generation: int) -> str:
    return f"generations/{generation:06d}.json"


def config_name(digest: str) -> str:
    """The object with the configuration of this hash, which generations ran with."""
    return f"configs/{digest}.json"


def generation_numbers(store: Store) -> list[int]:
    """The generations that have been formed, as far as this tier shows."""
    names = store.sizes("generations/")
    matches = (re.fullmatch(r"generations/(\d+)\.json", name) for name in names)
    return sorted(number for m in matches if m and generation_name(number := int(m[1])) in names)


def read_generation(store: Store, name: str) -> Generation:
    """The generation whose object has that name. Raises ObjectMissing, StoreUnavailable, and ConfigError for an object
    that is none: to pass over it could give its commits to another one."""
    try:
        generation = Generation.model_validate_json(store.read(name))
    except ValidationError as error:
        raise ConfigError(f"{store.uri}/{name}: is not a generation: {first_mistake(error)}") from None
    if generation.name != name:
        raise ConfigError(f"{store.uri}/{name}: is not a generation: generation: is {generation.generation}")
    if generation.parent is not None and generation.parent.generation >= generation.generation:
        raise ConfigError(
            f"{store.uri}/{name}: is not a generation: its parent is generation {generation.parent.generation}"
        )
    return generation


def _missing_generations(root: TierCommits, generations: Sequence[Generation]) -> set[int]:
    """Generations that have commits on the root, and no object."""
    return {ref.generation for ref in root.commits} - {g.generation for g in generations}


def _read_generations(store: Store) -> list[Generation]:
    names = [generation_name(number) for number in generation_numbers(store)]
    # A job on spot has hundreds, and a gang that is formed again waits for them.
    return in_parallel(lambda i: read_generation(store, names[i]), len(names), reader_threads(store.uri))


def reader_threads(uri: str) -> int:
    """How many small objects to read at a time. A bucket answers or fails in a time that is known; a file system
    answers at once, or holds a thread for good, which the process would wait for."""
    return READERS if is_shared(uri) else 1


def _read_tier(store: Store) -> TierCommits:
    return TierCommits(frozenset(parse_commits(store.sizes("commits/"))), damaged_commits(store))


def _parse_refs(prefix: str, names: Iterable[str]) -> Iterator[CommitRef]:
    for name in names:
        match = re.fullmatch(rf"{prefix}(\d+)-(\d+)\.json", name)
        if match:
            yield CommitRef(generation=int(match[1]), step=int(match[2]))


def _at_or_below(step: int, last_step: int | None) -> bool:
    return last_step is None or step <= last_step
