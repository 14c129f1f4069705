"""Lineage: what is read after failures, rewinds and zombies."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from convoy.job.lineage import CommitRef, Generation, History, lineage, newest_commit, parse_commits
from tests.campaign import examples


def generation(number: int, parent: tuple[int, int] | None) -> Generation:
    ref = None if parent is None else CommitRef(generation=parent[0], step=parent[1])
    return Generation(
        generation=number, parent=ref, formation=f"f{number}", nodes=1, world_size=1, config_hash="", created=0.0
    )


def history(parents: dict[int, tuple[int, int] | None], commits: list[tuple[int, int]]) -> History:
    return History(
        {g: generation(g, p) for g, p in parents.items()},
        frozenset(CommitRef(generation=g, step=s) for g, s in commits),
    )


def steps(h: History) -> list[tuple[int, int]]:
    return [(c.generation, c.step) for c in lineage(h)]


def test_a_job_without_commits_starts_from_nothing():
    assert newest_commit(history({}, [])) is None
    assert newest_commit(history({1: None}, [])) is None


def test_a_restart_goes_on_from_the_commit_its_parent_left():
    h = history({1: None, 2: (1, 20)}, [(1, 10), (1, 20), (2, 30)])
    assert steps(h) == [(1, 10), (1, 20), (2, 30)]


def test_a_generation_that_died_before_its_first_commit_hides_nothing():
    h = history({1: None, 2: (1, 20), 3: (1, 20)}, [(1, 10), (1, 20)])
    assert newest_commit(h) == CommitRef(generation=1, step=20)


def test_what_a_zombie_commits_after_it_was_superseded_is_never_read():
    h = history({1: None, 2: (1, 20)}, [(1, 10), (1, 20), (1, 30), (1, 40)])
    assert steps(h) == [(1, 10), (1, 20)]


def test_an_abandoned_branch_is_never_read_though_its_steps_are_larger():
    h = history({1: None, 2: (1, 10), 3: (2, 15)}, [(1, 10), (1, 20), (1, 99), (2, 15), (2, 60), (3, 25)])
    assert steps(h) == [(1, 10), (2, 15), (3, 25)]


def test_two_generations_may_commit_the_same_step():
    h = history({1: None, 2: (1, 10)}, [(1, 10), (1, 20), (2, 20)])
    assert newest_commit(h) == CommitRef(generation=2, step=20)


def test_commits_of_a_generation_that_has_no_object_do_not_count():
    assert lineage(history({1: None}, [(1, 10), (7, 50)])) == [CommitRef(generation=1, step=10)]


def test_other_names_in_the_folder_are_not_commits():
    names = ["commits/000001-000000010.json", "commits/.tmp-ab", "commits/000001-x.json"]
    assert parse_commits(names) == [CommitRef(generation=1, step=10)]


def test_a_commit_name_reads_back_as_itself():
    ref = CommitRef(generation=12, step=345678)
    assert parse_commits([ref.name]) == [ref]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Any run of a job: each generation starts from a commit that counted, or from nothing, and commits some steps."""
    h = history({}, [])
    for number in range(1, draw(st.integers(1, 6)) + 1):
        choices = [None, *lineage(h)]
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
    counted = lineage(h)
    assert [c.step for c in counted] == sorted({c.step for c in counted})
    assert all(a.generation <= b.generation for a, b in itertools.pairwise(counted))


@examples(200)
@given(histories(), st.integers(1, 60))
def test_a_superseded_generation_can_write_what_it_likes(h: History, step: int):
    old = [g for g in h.generations if g != h.newest]
    zombie = {CommitRef(generation=g, step=10_000 + step) for g in old}
    assert lineage(History(h.generations, h.commits | zombie)) == lineage(h)
