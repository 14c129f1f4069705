"""Lineage: what is read after failures, rewinds and zombies."""

import itertools
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.config.errors import ConfigError
from convoy.job.lineage import (
    CommitRef,
    Generation,
    History,
    TierCommits,
    all_commits_lost,
    counted_commits,
    damaged_name,
    intact_tiers,
    newest_commit,
    on_branch,
    parse_commits,
    read_history,
    restore_candidates,
)
from convoy.storage import Store, StoreUnavailable, open_store
from tests.campaign import examples
from tests.checkpoint.shims import Hooked

pytestmark = pytest.mark.campaign


def generation(number: int, parent: tuple[int, int] | None) -> Generation:
    ref = None if parent is None else CommitRef(generation=parent[0], step=parent[1])
    return Generation(
        generation=number, parent=ref, formation=f"f{number}", nodes=1, world_size=1, config_hash="", created=0.0
    )


def refs(*named: tuple[int, int]) -> frozenset[CommitRef]:
    return frozenset(CommitRef(generation=g, step=s) for g, s in named)


def history(
    parents: dict[int, tuple[int, int] | None],
    commits: list[tuple[int, int]],
    damaged: list[tuple[int, int]] | None = None,
    others: tuple[TierCommits, ...] = (),
) -> History:
    return History({g: generation(g, p) for g, p in parents.items()}, refs(*commits), refs(*(damaged or [])), others)


def steps(h: History) -> list[tuple[int, int]]:
    return [(c.generation, c.step) for c in counted_commits(h)]


@pytest.mark.parametrize(
    ("parents", "commits", "damaged", "counted"),
    [
        ({1: None, 2: (1, 20)}, [(1, 10), (1, 20), (2, 30)], [], [(1, 10), (1, 20), (2, 30)]),
        ({1: None, 2: (1, 20), 3: (1, 20)}, [(1, 10), (1, 20)], [], [(1, 10), (1, 20)]),
        ({1: None, 2: (1, 20)}, [(1, 10), (1, 20), (1, 30), (1, 40)], [], [(1, 10), (1, 20)]),
        (
            {1: None, 2: (1, 10), 3: (2, 15)},
            [(1, 10), (1, 20), (1, 99), (2, 15), (2, 60), (3, 25)],
            [],
            [(1, 10), (2, 15), (3, 25)],
        ),
        ({1: None, 2: (1, 10)}, [(1, 10), (1, 20), (2, 20)], [], [(1, 10), (2, 20)]),
        ({1: None}, [(1, 10), (7, 50)], [], [(1, 10)]),
        ({1: None}, [(1, 10), (1, 20)], [(1, 20)], [(1, 10)]),
        ({1: None, 2: (1, 10)}, [(1, 10), (1, 20), (2, 20)], [(1, 20)], [(1, 10), (2, 20)]),
    ],
    ids=[
        "a restart",
        "a generation that died before its first commit",
        "a zombie that commits after it was superseded",
        "an abandoned branch whose steps are larger",
        "two generations that commit the same step",
        "commits of a generation without an object",
        "a damaged commit",
        "a damaged newest commit, and the same step of the next generation",
    ],
)
def test_what_counts_goes_on_from_the_commit_that_the_parent_left(
    parents: dict[int, tuple[int, int] | None],
    commits: list[tuple[int, int]],
    damaged: list[tuple[int, int]],
    counted: list[tuple[int, int]],
):
    h = history(parents, commits, damaged)
    assert steps(h) == counted
    assert newest_commit(h) == CommitRef(generation=counted[-1][0], step=counted[-1][1])


def test_a_commit_counts_as_long_as_one_tier_has_it_whole():
    copied = TierCommits(refs((1, 10), (1, 20)))
    h = history({1: None}, [(1, 10), (1, 20)], damaged=[(1, 20)], others=(copied,))
    assert restore_candidates(h) == [
        (CommitRef(generation=1, step=20), [1]),
        (CommitRef(generation=1, step=10), [0, 1]),
    ]
    again = history(
        {1: None}, [(1, 10), (1, 20)], damaged=[(1, 20)], others=(TierCommits(copied.commits, refs((1, 20))),)
    )
    assert steps(again) == [(1, 10)]
    assert intact_tiers(again, CommitRef(generation=1, step=20)) == []


def test_a_parent_that_turns_up_whole_after_its_child_went_on_from_an_older_commit_stays_out():
    """Generation 2 found (1, 30) damaged and went on from (1, 20); then a copy of (1, 30) was completed elsewhere."""
    parents: dict[int, tuple[int, int] | None] = {1: None, 2: (1, 30)}
    commits = [(1, 20), (1, 30), (2, 25)]
    h = history(parents, commits, damaged=[(1, 30)], others=(TierCommits(refs((1, 30))),))
    assert steps(h) == [(1, 20), (2, 25)]
    assert on_branch(h, CommitRef(generation=1, step=30))  # and yet no stray of another branch


def test_a_job_is_lost_if_it_had_commits_that_counted_and_none_is_left():
    assert newest_commit(history({}, [])) is newest_commit(history({1: None}, [])) is None
    assert not all_commits_lost(history({}, []))
    assert not all_commits_lost(
        history({1: None, 2: None}, [(1, 10)])
    )  # committed by a zombie, after 2 had begun from nothing
    assert not all_commits_lost(history({1: None}, [(1, 10)]))
    assert all_commits_lost(history({1: None}, [(1, 10)], damaged=[(1, 10)]))
    assert all_commits_lost(history({1: None, 2: (1, 10)}, []))
    assert all_commits_lost(history({1: None, 2: (1, 10), 3: (1, 10)}, [(1, 20)]))


def test_the_history_of_several_tiers_is_read_with_their_marks(tmp_path: Path):
    root, tier = open_store(str(tmp_path / "root")), open_store(str(tmp_path / "tier"))
    put(root, generation(1, None))
    for store in (root, tier):
        for ref in refs((1, 10), (1, 20)):
            store.create(ref.name, b"")
    root.create(damaged_name(CommitRef(generation=1, step=20)), b"{}")
    h = read_history(root, [tier])
    assert restore_candidates(h) == [
        (CommitRef(generation=1, step=20), [1]),
        (CommitRef(generation=1, step=10), [0, 1]),
    ]
    assert steps(read_history(root)) == [(1, 10)]


def test_hundreds_of_generations_in_a_bucket_do_not_wait_for_one_another(tmp_path: Path):
    store = Hooked(open_store(str(tmp_path)), lambda operation, _: operation == "read" and time.sleep(0.03))
    store.uri = "s3://bucket/job"
    for number in range(1, 201):
        put(store, generation(number, None))
    began = time.monotonic()
    assert sorted(read_history(store).generations) == list(range(1, 201))
    assert time.monotonic() - began < 5.0, "6 s in a row"


def test_a_root_that_lacks_what_a_tier_has_is_not_mounted(tmp_path: Path):
    root, tier = open_store(str(tmp_path / "root")), open_store(str(tmp_path / "tier"))
    tier.create(CommitRef(generation=1, step=10).name, b"")
    with pytest.raises(StoreUnavailable, match=r"root lacks generation 1 of the job, which .*tier has: it is not"):
        read_history(root, [tier])
    put(root, generation(1, None))
    assert steps(read_history(root, [tier])) == [(1, 10)]
    put(tier, generation(2, (1, 10)))
    with pytest.raises(StoreUnavailable, match="lacks generation 2"):
        read_history(root, [tier])


def put(store: Store, made: Generation) -> None:
    assert store.create(made.name, made.model_dump_json().encode())


def test_other_names_in_the_folder_are_not_commits():
    ref = CommitRef(generation=12, step=345678)
    names = [ref.name, "commits/000001-000000010.json", "commits/.tmp-ab", "commits/000001-x.json"]
    assert parse_commits(names) == [ref, CommitRef(generation=1, step=10)]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Any run of a job: each generation starts from a commit that counted, or from nothing, and commits some steps."""
    h = history({}, [])
    for number in range(1, draw(st.integers(1, 6)) + 1):
        choices = [None, *counted_commits(h)]
        parent = draw(st.sampled_from(choices))
        first = 0 if parent is None else parent.step
        made = draw(st.sets(st.integers(first + 1, first + 30), max_size=4))
        h = History(
            {**h.generations, number: generation(number, parent and (parent.generation, parent.step))},
            h.commits | {CommitRef(generation=number, step=s) for s in made},
        )
    return h


@examples(200)
@given(histories())
def test_the_commits_that_count_have_rising_steps_and_each_came_from_the_one_before(h: History):
    counted = counted_commits(h)
    assert [c.step for c in counted] == sorted({c.step for c in counted})
    assert all(a.generation <= b.generation for a, b in itertools.pairwise(counted))


@examples(200)
@given(histories(), st.integers(1, 60))
def test_a_superseded_generation_can_write_what_it_likes(h: History, step: int):
    old = [g for g in h.generations if g != h.newest]
    zombie = {CommitRef(generation=g, step=10_000 + step) for g in old}
    assert counted_commits(History(h.generations, h.commits | zombie)) == counted_commits(h)


@examples(200)
@given(histories(), st.data())
def test_damage_takes_a_commit_away_and_never_adds_or_reorders_one(h: History, data: st.DataObject):
    damaged = data.draw(st.sets(st.sampled_from(sorted(h.commits, key=lambda r: r.name)))) if h.commits else set()
    left = counted_commits(History(h.generations, h.commits, frozenset(damaged)))
    assert left == [ref for ref in counted_commits(h) if ref not in damaged]


@examples(200)
@given(histories(), st.data())
def test_it_does_not_matter_which_tier_a_commit_lies_on(h: History, data: st.DataObject):
    where = {ref: data.draw(st.integers(1, 3)) for ref in sorted(h.commits, key=lambda r: r.name)}
    root = frozenset(ref for ref, tiers in where.items() if tiers & 1)
    tier = TierCommits(frozenset(ref for ref, tiers in where.items() if tiers & 2))
    spread = History(h.generations, root, others=(tier,))
    assert counted_commits(spread) == counted_commits(h)
    assert all(bool(intact_tiers(spread, ref)) for ref in counted_commits(h))


def test_commits_whose_generation_is_gone_are_an_outage_and_never_a_fresh_start(tmp_path: Path) -> None:
    """Its number would be given again, and its commits would be another generation's."""
    store = open_store(str(tmp_path))
    kept = {number: generation(number, parent) for number, parent in ((1, None), (2, (1, 10)))}
    for ref in refs((1, 10), (2, 20)):
        store.create(ref.name, b"{}")
    for missing in (1, 2):
        there = {number: each for number, each in kept.items() if number != missing}
        for each in there.values():
            store.create(each.name, each.model_dump_json().encode())
        with pytest.raises(StoreUnavailable, match=f"generations/{missing:06d}.json is missing"):
            read_history(store)
        for each in there.values():
            store.delete(each.name)


def test_a_generation_that_forms_while_the_history_is_read_is_no_outage(tmp_path: Path) -> None:
    """Its first commit may be in the listing that comes second."""
    first, second = generation(1, None), generation(2, (1, 10))

    def after(operation: str, prefix: str) -> None:
        if (operation, prefix) == ("sizes", "generations/"):
            folder.create(second.name, second.model_dump_json().encode())
            folder.create("commits/000002-000000020.json", b"{}")

    folder = open_store(str(tmp_path))
    folder.create(first.name, first.model_dump_json().encode())
    assert read_history(Hooked(folder, after=after)).newest == 2


@pytest.mark.parametrize("parent", [1, 2])
def test_a_generation_that_goes_on_from_itself_or_a_later_one_is_none(parent: int, tmp_path: Path) -> None:
    store, circular = open_store(str(tmp_path)), generation(1, (parent, 10))
    store.create(circular.name, circular.model_dump_json().encode())
    with pytest.raises(ConfigError, match=rf"is not a generation: its parent is generation {parent}$"):
        read_history(store)
