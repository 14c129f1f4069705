"""Forming generations in a real folder."""

import threading
from pathlib import Path

import pytest

from convoy.config.errors import ConfigError
from convoy.job.generations import (
    FormationRefusedError,
    GenerationLostError,
    await_generation,
    form_generation,
    refuse_formation,
    rewind,
)
from convoy.job.lineage import CommitRef, Generation, newest_commit, read_history
from convoy.storage import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "job"))


def form(store: Store, formation: str = "run/1") -> Generation:
    return form_generation(store, formation=formation, nodes=2, world_size=4, config_hash="c", rendezvous="h:1")


def commit(store: Store, generation: int, step: int) -> None:
    assert store.create(CommitRef(generation=generation, step=step).name, b"{}")


def test_the_first_generation_has_no_parent_and_the_next_goes_on_from_the_newest_commit(store: Store):
    assert form(store).parent is None
    commit(store, 1, 10)
    commit(store, 1, 20)
    second = form(store)
    assert (second.generation, second.parent) == (2, CommitRef(generation=1, step=20))


def test_of_many_formations_at_once_exactly_one_gets_each_number(store: Store):
    outcomes: list[int | str] = []
    start = threading.Barrier(8)

    def attempt(i: int) -> None:
        start.wait()
        try:
            outcomes.append(form(store, f"run/{i}").generation)
        except GenerationLostError:
            outcomes.append("lost")

    threads = [threading.Thread(target=attempt, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    won = [o for o in outcomes if o != "lost"]
    assert len(won) == len(set(won)) == len(read_history(store).generations) >= 1


def test_other_nodes_find_the_generation_of_their_own_formation(store: Store):
    form(store, "run/1/attempt-0")
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        form(store, "run/1/attempt-1")

    found = await_generation(store, "run/1/attempt-1", deadline_seconds=5, poll_seconds=0.1, sleep=sleep)
    assert (found.generation, len(sleeps)) == (2, 1)


def test_waiting_for_a_generation_that_never_comes_ends_at_the_deadline(store: Store):
    with pytest.raises(TimeoutError, match="run/9"):
        await_generation(store, "run/9", deadline_seconds=1, poll_seconds=0.25, sleep=lambda _: None)


def test_a_rewind_makes_an_earlier_commit_the_newest_and_hides_the_later_ones(store: Store):
    form(store)
    for step in (10, 20, 30):
        commit(store, 1, step)
    assert rewind(store, 25) == CommitRef(generation=1, step=20)
    assert newest_commit(read_history(store)) == CommitRef(generation=1, step=20)
    assert form(store).parent == CommitRef(generation=1, step=20)
    commit(store, 1, 40)  # the abandoned branch goes on writing
    assert newest_commit(read_history(store)) == CommitRef(generation=1, step=20)


def test_a_rewind_before_the_first_commit_is_refused_and_says_what_there_is(store: Store):
    form(store)
    commit(store, 1, 10)
    with pytest.raises(ConfigError, match=r"--to 5: .*commits: 10"):
        rewind(store, 5)


def test_nodes_that_wait_learn_at_once_why_their_generation_will_not_come(store: Store):
    refuse_formation(store, "run/1/attempt-0", "job = blue: run TrainFlow/7 is running it now")
    with pytest.raises(FormationRefusedError, match="run TrainFlow/7 is running it now"):
        await_generation(store, "run/1/attempt-0", deadline_seconds=60, poll_seconds=1, sleep=pytest.fail)


def test_the_refusal_of_another_attempt_is_not_ours(store: Store):
    refuse_formation(store, "run/1/attempt-0", "no")
    with pytest.raises(TimeoutError):
        await_generation(store, "run/1/attempt-1", deadline_seconds=1, poll_seconds=0.5, sleep=lambda _: None)


def test_a_node_whose_formation_was_overtaken_learns_it_at_once(store: Store):
    form(store, "run/1/attempt-0")
    form(store, "run/2/attempt-0")
    with pytest.raises(GenerationLostError, match="formed a newer generation"):
        await_generation(store, "run/1/attempt-0", deadline_seconds=60, poll_seconds=1, sleep=pytest.fail)
