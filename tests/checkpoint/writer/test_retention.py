"""What is kept: pure functions over what a tier holds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.writer.retention import (
    AttemptSummary,
    Inventory,
    abandoned_attempts,
    deletable_attempts,
    deletable_commits,
)
from convoy.config.checkpoint import RetentionConfig
from convoy.job.lineage import CommitRef, History, counted_commits
from tests.campaign import examples
from tests.job.test_lineage import histories, history, refs

pytestmark = pytest.mark.campaign

NOW, GRACE = 10_000.0, 3600.0
OLD, YOUNG = NOW - GRACE - 1, NOW - GRACE + 1


def tier(
    *commits: tuple[int, int],
    verified: list[tuple[int, int]] | None = None,
    damaged: list[tuple[int, int]] | None = None,
    leased: list[tuple[int, int]] | None = None,
    made: float = OLD,
    attempts: list[AttemptSummary] | None = None,
) -> Inventory:
    return Inventory(
        commits=dict.fromkeys(refs(*commits), made),
        now=NOW,
        damaged=refs(*(damaged or [])),
        verified=refs(*(verified or [])),
        leased=refs(*(leased or [])),
        attempts=attempts or [],
    )


def deletable(
    parents: dict[int, tuple[int, int] | None], held: Inventory, keep_last: int = 1, every: int | None = None
) -> list[tuple[int, int]]:
    policy = RetentionConfig(keep_last=keep_last, keep_every_steps=every)
    h = history(parents, [(ref.generation, ref.step) for ref in held.commits])
    return [(ref.generation, ref.step) for ref in deletable_commits(h, held, policy, GRACE)]


FIVE = [(1, 10), (1, 20), (1, 30), (1, 40), (1, 50)]


def test_the_newest_verified_ones_and_all_that_is_newer_stay() -> None:
    held = tier(*FIVE, verified=[(1, 10), (1, 20), (1, 30)])
    assert deletable({1: None}, held, keep_last=1) == [(1, 10), (1, 20)]
    assert deletable({1: None}, held, keep_last=2) == [(1, 10)]


def test_with_fewer_verified_ones_than_are_to_stay_nothing_goes() -> None:
    assert deletable({1: None}, tier(*FIVE), keep_last=1) == []
    assert deletable({1: None}, tier(*FIVE, verified=[(1, 40), (1, 50)]), keep_last=3) == []


def test_verified_commits_that_were_found_damaged_since_do_not_count_and_go_like_others() -> None:
    held = tier(*FIVE, verified=[(1, 30), (1, 50)], damaged=[(1, 10), (1, 40)])
    assert deletable({1: None}, held, keep_last=2) == [(1, 10), (1, 20)]


def test_what_a_reader_holds_stays() -> None:
    held = tier(*FIVE, verified=[(1, 40)], leased=[(1, 20)])
    assert deletable({1: None}, held) == [(1, 10), (1, 30)]


def test_one_for_each_multiple_stays_for_ever() -> None:
    commits = [(1, step) for step in (10, 20, 25, 30, 40, 50, 60, 70)]
    held = tier(*commits, verified=[(1, 50), (1, 70)])
    # The first from each multiple of 25 on: 25, 50, and not 10 and 20, which no multiple precedes.
    assert deletable({1: None}, held, every=25) == [(1, 10), (1, 20), (1, 30), (1, 40), (1, 60)]


def test_of_those_for_one_multiple_a_verified_one_stays() -> None:
    held = tier((1, 25), (1, 30), (1, 40), (1, 50), verified=[(1, 30), (1, 40), (1, 50)])
    assert deletable({1: None}, held, every=25) == [(1, 25), (1, 40)]


def test_commits_off_the_lineage_go_when_they_are_old_whatever_is_known_of_them() -> None:
    parents: dict[int, tuple[int, int] | None] = {1: None, 2: (1, 20)}
    commits = [(1, 10), (1, 20), (1, 30), (1, 40), (2, 30)]
    held = tier(*commits, verified=[(1, 40)], leased=[(1, 30)])
    assert deletable(parents, held) == [(1, 40)]
    assert deletable(parents, tier(*commits, verified=[(1, 40)], made=YOUNG)) == []


def test_a_rewound_branch_does_not_make_the_target_of_the_rewind_go() -> None:
    parents: dict[int, tuple[int, int] | None] = {1: None, 2: (1, 10)}
    held = tier(*FIVE, verified=FIVE, made=YOUNG)
    assert deletable(parents, held) == []


def test_commits_of_a_generation_that_nobody_knows_stay() -> None:
    held = tier((1, 10), (1, 20), (7, 30), verified=[(1, 20)])
    assert deletable({1: None}, held) == [(1, 10)]


def attempt(generation: int, step: int, name: str = "a", changed: float = YOUNG) -> AttemptSummary:
    return AttemptSummary(CommitRef(generation=generation, step=step), name, 1, changed)


def left_over(held: Inventory, committed: dict[CommitRef, str] | None = None) -> list[tuple[int, int, str]]:
    h = history({1: None, 2: None}, [(ref.generation, ref.step) for ref in held.commits])
    found = deletable_attempts(h, held, committed or {}, GRACE)
    return [(a.ref.generation, a.ref.step, a.name) for a in found]


def test_files_of_an_own_attempt_go_at_once_when_a_later_save_is_there_and_never_before() -> None:
    attempts = [attempt(2, 10), attempt(2, 20), attempt(2, 30)]
    assert left_over(tier((2, 20), attempts=attempts)) == [(2, 10, "a")]
    assert left_over(tier(attempts=attempts)) == []


def test_files_of_another_generations_attempt_go_when_they_are_old() -> None:
    held = tier((2, 20), attempts=[attempt(1, 10), attempt(1, 20, changed=OLD)])
    assert left_over(held) == [(1, 20, "a")]


def test_of_several_attempts_at_a_committed_step_the_one_that_its_commit_names_stays() -> None:
    both = [attempt(2, 20, "a"), attempt(2, 20, "b")]
    held, ref = tier((2, 20), attempts=both), CommitRef(generation=2, step=20)
    assert left_over(held, {ref: "b"}) == [(2, 20, "a")]
    assert left_over(held) == []  # which one it names is not known: its commit cannot be read


def test_files_that_are_read_or_copied_or_of_an_unknown_generation_stay() -> None:
    old = [attempt(1, 10, changed=OLD), attempt(9, 10, changed=OLD)]
    assert left_over(tier(attempts=old, leased=[(1, 10)])) == []


def abandoned(held: Inventory, *over: str, committed: dict[CommitRef, str] | None = None) -> list[tuple[int, int, str]]:
    return [
        (a.ref.generation, a.ref.step, a.name) for a in abandoned_attempts(2, held, committed or {}, frozenset(over))
    ]


def test_files_of_an_own_attempt_that_is_known_to_have_failed_go_at_once_and_its_markers_stay() -> None:
    attempts = [attempt(2, 10, "a"), attempt(2, 20, "b"), replace(attempt(2, 30, "c"), only_markers=True)]
    assert abandoned(tier(attempts=attempts), "a", "c") == [(2, 10, "a")]
    assert left_over(tier(attempts=attempts)) == []


def test_files_of_another_generation_are_not_known_to_be_of_a_failed_attempt_by_its_name() -> None:
    assert abandoned(tier(attempts=[attempt(1, 10, "a")]), "a") == []


def test_files_of_a_failed_attempt_stay_while_they_might_be_read() -> None:
    both, ref = [attempt(2, 20, "a"), attempt(2, 20, "b")], CommitRef(generation=2, step=20)
    assert abandoned(tier(attempts=both, leased=[(2, 20)]), "a") == []
    assert abandoned(tier((2, 20), attempts=both), "a", committed={ref: "a"}) == []
    assert abandoned(tier((2, 20), attempts=both), "a") == []  # its commit cannot be read
    assert abandoned(tier((2, 20), attempts=both), "a", committed={ref: "b"}) == [(2, 20, "a")]


@st.composite
def tiers_with_attempts(draw: st.DrawFn) -> tuple[Inventory, dict[CommitRef, str]]:
    """What a tier holds, and which attempt each of its commits names, where that can be read."""
    some = st.builds(CommitRef, generation=st.integers(1, 3), step=st.sampled_from([10, 20]))
    found = st.tuples(some, st.sampled_from("abc"))
    attempts = draw(st.lists(found, unique=True, max_size=8))
    markers = draw(st.lists(st.booleans(), min_size=len(attempts), max_size=len(attempts)))
    commits = draw(st.sets(some, max_size=4))
    held = Inventory(
        commits=dict.fromkeys(commits, OLD),
        now=NOW,
        leased=frozenset(draw(st.sets(some, max_size=2))),
        attempts=[AttemptSummary(*each, 1, YOUNG, only) for each, only in zip(attempts, markers, strict=True)],
    )
    return held, {ref: draw(st.sampled_from("abc")) for ref in commits if draw(st.booleans())}


@examples(100)
@given(tiers_with_attempts(), st.frozensets(st.sampled_from("abc")))
def test_of_failed_attempts_all_goes_but_what_others_may_still_read(
    held: tuple[Inventory, dict[CommitRef, str]], over: frozenset[str]
) -> None:
    there, committed = held
    gone = abandoned_attempts(2, there, committed, over)
    for found in there.attempts:
        named = found.ref in there.commits and committed.get(found.ref, found.name) == found.name
        foreign = found.ref.generation != 2 or found.name not in over
        assert (found in gone) == (not (named or foreign or found.only_markers or found.ref in there.leased))


@pytest.mark.parametrize("keep_last", [1, 2, 3])
@examples(100)
@given(histories(), st.data())
def test_whatever_happened_the_newest_verified_commits_and_all_newer_ones_stay(
    keep_last: int, h: History, data: st.DataObject
) -> None:
    commits = sorted(h.commits, key=lambda ref: ref.name)
    some = st.sets(st.sampled_from(commits)) if commits else st.just(set())
    verified, damaged, leased = (frozenset(data.draw(some)) for _ in range(3))
    made = {ref: data.draw(st.sampled_from([OLD, YOUNG])) for ref in commits}
    held = Inventory(made, NOW, damaged, verified - damaged, leased)
    every = data.draw(st.sampled_from([None, 1, 7, 20]))
    gone = set(deletable_commits(h, held, RetentionConfig(keep_last=keep_last, keep_every_steps=every), GRACE))
    chain = counted_commits(History(h.generations, h.commits, damaged))
    kept = [ref for ref in chain if ref in held.verified][-keep_last:]
    assert not gone & {*kept, *leased}
    if kept and len(kept) == keep_last:
        assert not gone & {ref for ref in chain if ref.step >= kept[0].step}
    else:
        assert not gone & set(chain)
    if every == 1:
        assert not gone & set(chain)
    # And pruning again, when nothing has changed but that, finds nothing more.
    left = {ref: at for ref, at in made.items() if ref not in gone}
    again = Inventory(left, NOW, damaged, verified - damaged, leased)
    policy = RetentionConfig(keep_last=keep_last, keep_every_steps=every)
    assert deletable_commits(History(h.generations, frozenset(left), damaged), again, policy, GRACE) == []
