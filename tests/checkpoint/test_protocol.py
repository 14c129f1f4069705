"""The protocol under any interleaving: gangs that were superseded and do not know it, rewinds, damage, pruning, kills.

Never read wrongly, never blocked, never deleted wrongly.
"""

import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from convoy.checkpoint.commits import CommitGoneError, read_commit
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import DamagedCommitError
from convoy.checkpoint.verify.commit import verify_part
from convoy.checkpoint.verify.marks import mark_damaged
from convoy.checkpoint.writer.coordinator import SupersededError
from convoy.checkpoint.writer.prune import prune
from convoy.config.checkpoint import RetentionConfig
from convoy.config.errors import ConfigError
from convoy.job.generations import CommitsLostError, GenerationLostError, RestoreOrigin, form_generation, rewind
from convoy.job.leases import lease
from convoy.job.lineage import (
    CommitRef,
    Generation,
    generation_name,
    newest_commit,
    on_branch,
    parse_commits,
    read_history,
    restore_candidates,
)
from convoy.storage import Store
from tests.campaign import examples
from tests.checkpoint.stage import Actor, Killed, MemoryStore
from tests.checkpoint.torchless import TinyState, part_bytes

pytestmark = [pytest.mark.campaign, pytest.mark.processes]

KEEP_LAST = 1
POLICY = RetentionConfig(keep_last=KEEP_LAST)


@dataclass(frozen=True)
class GangState(TinyState):
    """What a generation's gang holds depends on the generation, too: two branches never have the same state."""

    sizes: tuple[int, ...] = (8, 8)
    generation: int = 0

    def data(self, writer: int, step: int) -> bytes:
        return random.Random(f"{self.generation} {step} {writer}").randbytes(8)


@dataclass
class World:
    """The store, and what a god would know of the job."""

    store: MemoryStore = field(default_factory=MemoryStore)
    base: dict[int, CommitRef | None] = field(default_factory=dict)
    """The commit whose state each gang in truth went on from."""
    made: set[CommitRef] = field(default_factory=set)
    damaged: set[CommitRef] = field(default_factory=set)
    removed: list[CommitRef] = field(default_factory=list)
    """Commits whose objects were removed, if only until they were put back."""
    limbo: set[CommitRef] = field(default_factory=set)
    """Those of which it is not known yet whether they will be put back."""
    torn: bool = False
    """Something was killed just then."""
    reading: list[CommitRef] = field(default_factory=list)
    """Commits that a reader holds a lease on, and has seen."""
    saving: int = 0
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.store.before_delete = self._before_delete

    @property
    def there(self) -> set[CommitRef]:
        return set(parse_commits(self.store.objects))

    def past(self, ref: CommitRef | None) -> list[CommitRef]:
        """The commits whose states led to this one, itself too."""
        found: list[CommitRef] = []
        while ref is not None:
            found += [c for c in self.made if c.generation == ref.generation and c.step <= ref.step]
            ref = self.base[ref.generation]
        return found

    def pruner_killed(self) -> None:
        self.torn = self.torn or not self.limbo <= self.there

    def _before_delete(self, name: str) -> None:
        room, _, rest = name.partition("/")
        if room == "commits":
            self.removed += parse_commits([name])
            self.limbo.update(parse_commits([name]))
        if room not in ("verified", "shards") or name not in self.store.objects:
            return
        (ref,) = parse_commits([f"commits/{rest.split('/')[0]}.json"])
        self.limbo.discard(ref)
        if room == "shards":
            self._check_removal(ref, rest.split("/")[1], name)

    def _check_removal(self, ref: CommitRef, attempt: str, name: str) -> None:
        """Files of a commit go only when it is gone, nobody reads it, and enough are left that were read back."""
        commit = self.store.objects.get(ref.name)
        assert commit is None or json.loads(commit[0])["attempt"] != attempt, f"{name} goes before its commit"
        if ref not in self.removed:
            return  # of a save that never was committed
        assert ref not in self.reading, f"{name} goes while it is read"
        history = read_history(self.store)
        if self.torn or not on_branch(history, ref):
            return
        whole = {found for found in self.there if f"verified/{found.stem}/all.json" in self.store.objects}
        newer = [c for c in whole if on_branch(history, c) and c.step > ref.step]
        assert len(newer) >= KEEP_LAST, f"{ref} goes, and only {newer} are left"
        self.seen["pruned"] += 1


def gang(world: World, number: int, saves: int) -> Actor:
    """A formation: it restores, trains and saves, reads back and prunes, whether it is superseded or not."""

    def run(actor: Actor, store: Store) -> None:
        absent = set(world.limbo), len(world.removed)
        try:
            made = form_generation(store, formation=f"f{number}", nodes=1, world_size=2, config_hash="c", rendezvous="")
        except GenerationLostError:
            return
        except CommitsLostError:
            history = read_history(world.store)
            counted = {ref for ref in world.there if on_branch(history, ref)}
            assert world.torn or world.removed or counted <= world.damaged, "not all was lost"
            world.seen["lost"] += 1
            return
        check_parent(world, made)
        missed = absent[0] | set(world.removed[absent[1] :])
        try:
            ref = restore(world, store, made, missed)
        except CheckpointError:
            return
        world.base[made.generation] = ref
        state, step = GangState(generation=made.generation), ref.step if ref else 0
        for save in range(saves):
            step += 10
            failed = fail_to_save(store, state, step, f"{number}-{save}-first") if save % 2 else None
            if not save_one(world, store, state, step, f"{number}-{save}"):
                return
            look_after(world, store, CommitRef(generation=made.generation, step=step), failed)

    return Actor(world.store, run)


def check_parent(world: World, made: Generation) -> None:
    """A generation goes on from a commit of the one before it, or from what led to that one's own parent."""
    name = generation_name(made.generation - 1)
    if made.parent is None or made.parent.generation == made.generation - 1:
        return
    before = Generation.model_validate_json(world.store.read(name))
    assert made.parent in world.past(before.parent), f"{made.parent} did not lead to {before.parent}"


def restore(world: World, store: Store, made: Generation, missed: set[CommitRef]) -> CommitRef | None:
    """The commit whose state was read, as a gang does it; while it is the newest, it must be the right one.

    missed: commits that were absent for a moment since the gang began to form.
    """
    history, past, before = read_history(store), set(world.past(made.parent)), len(world.removed)
    for ref, _ in restore_candidates(history):
        try:
            with lease(store, ref):
                read_all(world, store, ref)
        except CommitGoneError:
            continue
        except DamagedCommitError as error:
            mark_damaged(store, ref, str(error))
            assert world.damaged >= read_history(world.store).damaged, f"{ref} is whole, and was called damaged"
            world.seen["found damaged"] += 1
            continue
        world.seen["restored"] += 1
        if history.newest == made.generation:
            assert ref in past, f"{ref} was read, which did not lead to {made.parent}"
            better = {c for c in past & world.there if c.step > ref.step} - world.damaged
            better -= missed | set(world.removed[before:])
            assert not better, f"{ref} was read although there is {better}"
        return ref
    left = past & world.there - world.damaged - missed - set(world.removed[before:])
    assert history.newest != made.generation or not left, f"{left} is there, and was not read"
    if made.parent is not None:
        raise CheckpointError("none can be read")
    return None


def read_all(world: World, store: Store, ref: CommitRef) -> None:
    commit = read_commit(store, ref)
    world.reading.append(ref)
    try:
        state = GangState(generation=ref.generation)
        for writer in range(2):
            assert part_bytes(store, commit, writer) == state.data(writer, ref.step), f"{ref} holds another state"
    except CommitGoneError:
        raise AssertionError(f"{ref} went while it was read") from None
    finally:
        world.reading.remove(ref)


def fail_to_save(store: Store, state: GangState, step: int, attempt: str) -> str:
    """Leave a part of an attempt that nobody commits; its name."""
    state.write(store, state.request(store.uri, 1, step, generation=state.generation, attempt=attempt))
    return attempt


def save_one(world: World, store: Store, state: GangState, step: int, attempt: str) -> bool:
    """False: the gang learnt that it is superseded. Nothing else keeps it from committing."""
    world.saving += 1
    world.made.add(CommitRef(generation=state.generation, step=step))
    try:
        commit = state.save(store, step, generation=state.generation, attempt=attempt)
        assert commit.attempt == attempt, "another save has this name"
        return True
    except SupersededError:
        assert read_history(world.store).newest > state.generation
        world.seen["superseded"] += 1
        return False
    finally:
        world.saving -= 1


def look_after(world: World, store: Store, ref: CommitRef, failed: str | None) -> None:
    with contextlib.suppress(DamagedCommitError):  # or gone
        for part in range(2):
            verify_part(store, ref, part)
    try:
        prune(store, ref.generation, POLICY, failed=frozenset({failed} if failed else ()))
    except Killed:
        world.pruner_killed()
        raise


def rewinder(world: World, to_step: int) -> Actor:
    def run(actor: Actor, store: Store) -> None:
        with contextlib.suppress(ConfigError, GenerationLostError):  # nothing that old; or overtaken
            rewind(store, to_step)
            world.seen["rewound"] += 1

    return Actor(world.store, run)


def forms_on(world: World, ref: CommitRef) -> Actor:
    """A run of `Checkpoints` that has restored this commit of generation 1, and now forms its own."""

    def run(actor: Actor, store: Store) -> None:
        origin = RestoreOrigin(ref, newest=1)
        with contextlib.suppress(CommitsLostError, GenerationLostError):  # pruned meanwhile; or overtaken
            form_generation(store, formation="r", nodes=1, world_size=2, config_hash="c", rendezvous="", origin=origin)

    return Actor(world.store, run)


def reader(world: World, which: int) -> Actor:
    """Somebody who reads a commit, any commit, such as an export or a copy."""

    def run(actor: Actor, store: Store) -> None:
        there = sorted(world.there, key=lambda ref: ref.name)
        if there:
            ref = there[which % len(there)]
            with contextlib.suppress(DamagedCommitError), lease(store, ref):  # or gone
                read_all(world, store, ref)
                world.seen["read"] += 1

    return Actor(world.store, run)


def damage(world: World, which: int) -> None:
    """Flip a bit of some commit's files."""
    there = sorted(world.there - set(world.reading), key=lambda ref: ref.name)
    if len(there) < 2 or len(world.damaged) >= MAX_DAMAGED:
        return
    ref = there[which % len(there)]
    names = [name for name in world.store.objects if name.startswith(f"shards/{ref.stem}/") and name.endswith(".bin")]
    for name in names[which % 2 : which % 2 + 1]:
        data, at = world.store.objects[name]
        world.store.objects[name] = (bytes([data[0] ^ 1]) + data[1:], at)
        world.damaged.add(ref)


def two_hours_pass(world: World, actors: Sequence[Actor]) -> None:
    """Not while anything is saved or removed, which takes less than an hour. Whoever lives has renewed its leases."""
    held = {name for actor in actors if not actor.done for name in actor.held}
    if world.saving or any(name.startswith("removing/") for name in held):
        return
    world.store.clock += 7200
    for name in held & world.store.objects.keys():
        world.store.objects[name] = (world.store.objects[name][0], world.store.clock)


GANGS, MAX_DAMAGED = 4, 2
happenings = st.one_of(
    st.tuples(st.integers(0, GANGS - 1), st.integers(1, 200)),
    st.tuples(st.integers(0, GANGS - 1), st.integers(1, 200)),
    st.tuples(st.integers(0, GANGS - 1), st.integers(1, 12)),
    st.tuples(st.integers(0, GANGS - 1), st.integers(1, 12)),
    st.tuples(st.just("rewind"), st.sampled_from([10, 20, 30])),
    st.tuples(st.just("read"), st.integers(0, 9)),
    st.tuples(st.just("the last come goes on"), st.integers(1, 20)),
    st.tuples(st.just("the last come goes on"), st.integers(1, 20)),
    st.tuples(st.just("kill"), st.integers(0, GANGS - 1)),
    st.tuples(st.just("damage"), st.integers(0, 9)),
    st.tuples(st.just("hours"), st.just(0)),
)
"""Which gang goes on for how many operations, and what else may happen."""


@examples(60)
@given(st.lists(st.integers(1, 4), min_size=GANGS, max_size=GANGS), st.lists(happenings, min_size=10, max_size=60))
def test_under_any_interleaving_nothing_is_read_or_deleted_wrongly_and_nobody_is_blocked(
    saves: list[int], plan: list[tuple[int | str, int]]
) -> None:
    world = World()
    actors = [gang(world, number, count) for number, count in enumerate(saves)]
    for what, count in plan:
        match what:
            case "rewind":
                actors.append(rewinder(world, count))
            case "read":
                actors.append(reader(world, count))
            case "the last come goes on":
                turns(actors[GANGS:][-1:], count)
            case "kill":
                actors[count].kill()
            case "damage":
                damage(world, count)
            case "hours":
                two_hours_pass(world, actors)
            case int():
                turns(actors[what : what + 1], count)
    actors.append(gang(world, GANGS, 1))  # whatever happened, the job can go on
    for actor in actors:
        while not actor.done:
            actor.step()
        if actor.error is not None:
            raise actor.error
    for what in world.seen:
        event(str(what))


def turns(actors: Sequence[Actor], count: int) -> None:
    for actor in actors:
        for _ in range(count):
            actor.step()


def pruned_world() -> World:
    """Generation 1 has saved and read back 10, 20 and 30: the first two may go."""
    world = World()
    form_generation(world.store, formation="f", nodes=1, world_size=2, config_hash="c", rendezvous="")
    world.base[1] = None
    for step in (10, 20, 30):
        save_one(world, world.store, GangState(generation=1), step, f"a{step}")
        for part in range(2):
            verify_part(world.store, CommitRef(generation=1, step=step), part)
    return world


def pruner(world: World) -> Actor:
    return Actor(world.store, lambda actor, store: (prune(store, 1, POLICY), None)[1])


MEETS: dict[str, Callable[[World], Actor]] = {
    "reads 10": lambda world: reader(world, 0),
    "reads 20": lambda world: reader(world, 1),
    "rewinds to 10": lambda world: rewinder(world, 10),
    "rewinds to 20": lambda world: rewinder(world, 20),
    "forms on 10": lambda world: forms_on(world, CommitRef(generation=1, step=10)),
    "forms a gang and goes on": lambda world: gang(world, 7, 2),
    "prunes, too": pruner,
}


@examples(120)
@example(what="rewinds to 10", before=14, until=7, then=11)  # a generation is made, and its lease given back, ...
@example(what="forms on 10", before=14, until=7, then=11)  # ... while the pruning looks for one after the other
@given(st.sampled_from(sorted(MEETS)), st.integers(0, 70), st.integers(0, 30), st.integers(0, 70))
def test_whoever_meets_a_pruning_at_any_point_finds_all_of_a_commit_or_nothing(
    what: str, before: int, until: int, then: int
) -> None:
    """The pruning does so many operations, the other so many, the pruning some more, and both end."""
    world = pruned_world()
    first, other = pruner(world), MEETS[what](world)
    turns([first], before)
    turns([other], until)
    turns([first], then)
    for actor in (other, first):
        while not actor.done:
            actor.step()
        if actor.error is not None:
            raise actor.error
    event(f"{what}, {len(world.there)} are left")
    for ref in world.there:
        read_all(world, world.store, ref)
    history = read_history(world.store)
    newest = newest_commit(history)
    assert newest is not None
    if what != "forms a gang and goes on":
        assert newest == (history.generations[2].parent if history.newest == 2 else CommitRef(generation=1, step=30))
    world.store.clock += 7200
    for _ in range(2):
        assert prune(world.store, history.newest, POLICY).error is None
    assert {name.split("/")[1] for name in world.store.sizes("shards/")} == {ref.stem for ref in world.there}
    assert newest in world.there
    assert not world.store.sizes("removing/")
