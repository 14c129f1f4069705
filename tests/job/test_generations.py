"""Forming generations in a real folder."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from convoy.config.errors import ConfigError
from convoy.job.gang_tokens import read_token, remove_tokens
from convoy.job.generations import (
    CommitsLostError,
    FormationError,
    GenerationLostError,
    await_generation,
    form_generation,
    refuse_formation,
    rewind,
)
from convoy.job.leases import leased_commits
from convoy.job.lineage import CommitRef, Generation, damaged_name, newest_commit, read_history
from convoy.storage import Store, StoreUnavailable, open_store
from tests.checkpoint.shims import Hooked
from tests.conftest import S3Server
from tests.s3_proxy import S3Proxy


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "job"))


@pytest.fixture
def tier(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "tier"))


def form(store: Store, formation: str = "run/1", others: tuple[Store, ...] = (), token: str = "") -> Generation:
    return form_generation(
        store, formation=formation, nodes=2, world_size=4, config_hash="c", rendezvous="h:1", others=others, token=token
    )


def rewind_to_the_first(store: Store, others: tuple[Store, ...] = ()) -> CommitRef:
    return rewind(store, 10, others)


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
    with pytest.raises(FormationError, match="run TrainFlow/7 is running it now"):
        await_generation(store, "run/1/attempt-0", deadline_seconds=60, poll_seconds=1, sleep=pytest.fail)
    with pytest.raises(TimeoutError, match="attempt-1"):  # another attempt is not refused
        await_generation(store, "run/1/attempt-1", deadline_seconds=1, poll_seconds=0.5, sleep=lambda _: None)


def test_a_node_whose_formation_was_overtaken_learns_it_at_once(store: Store):
    form(store, "run/1/attempt-0")
    form(store, "run/2/attempt-0")
    with pytest.raises(GenerationLostError, match="formed a newer generation"):
        await_generation(store, "run/1/attempt-0", deadline_seconds=60, poll_seconds=1, sleep=pytest.fail)


def test_a_generation_goes_on_from_a_commit_that_only_a_further_tier_has_and_tells_the_tier(store: Store, tier: Store):
    form(store, others=(tier,))
    commit(store, 1, 10)
    commit(tier, 1, 20)
    assert form(store, others=(tier,)).parent == CommitRef(generation=1, step=20)
    assert read_history(tier).generations == read_history(store).generations


def test_with_a_tier_out_of_reach_no_generation_is_formed_from_an_older_commit(
    store: Store, s3_uri: str, s3_server: S3Server
):
    tier = open_store(s3_uri)
    form(store, others=(tier,))
    commit(store, 1, 10)
    s3_server.stop()
    with pytest.raises(StoreUnavailable):
        form(store, others=(tier,))
    assert read_history(store).newest == 1


@pytest.mark.parametrize("go_on", [form, rewind_to_the_first], ids=["formation", "rewind"])
def test_a_tier_that_is_not_mounted_is_no_empty_one_and_nothing_is_written_there(
    store: Store, tier: Store, go_on: Callable[..., object]
):
    form(store, others=(tier,))
    commit(store, 1, 10)
    commit(tier, 1, 20)
    Path(tier.uri).rename(tier.uri + ".elsewhere")
    bare = Path(tier.uri)
    bare.mkdir()
    with pytest.raises(StoreUnavailable, match=r"tier has nothing of the job, whose generation 1 .* is it mounted\?"):
        go_on(store, others=(open_store(tier.uri),))
    assert (read_history(store).newest, list(bare.iterdir())) == (1, [])


@pytest.mark.parametrize("go_on", [form, rewind_to_the_first], ids=["formation", "rewind"])
def test_a_tier_that_alone_has_the_newest_commit_cannot_be_left_out(
    store: Store, tier: Store, go_on: Callable[..., object]
):
    assert form(store, others=(tier,)).tiers == (tier.uri,)
    commit(store, 1, 10)
    commit(tier, 1, 20)
    with pytest.raises(
        ConfigError,
        match=r"checkpoint.tiers: lacks .*tier, which the job's generation 1 saved to; keep it: it alone has "
        r"the newest commit, step 20, until: convoy checkpoints copy .*tier .*job",
    ):
        go_on(store)
    assert read_history(store).newest == 1
    commit(store, 1, 20)  # as copying does
    go_on(store)
    assert (read_history(store).newest, read_history(store).generations[2].tiers) == (2, ())
    shutil.rmtree(tier.uri)
    go_on(store)  # it is no tier of the job any more


def test_a_tier_that_may_have_the_newest_commit_cannot_be_left_out_while_it_is_away(store: Store, tier: Store):
    form(store, others=(tier,))
    commit(store, 1, 10)
    shutil.rmtree(tier.uri)
    with pytest.raises(ConfigError, match=r"keep it: it may have the newest commit, and is out of reach .*is it"):
        form(store)


def test_a_tier_that_is_new_may_be_empty_and_the_root_s_place_may_be_taken_by_a_tier(store: Store, tier: Store):
    form(store)
    commit(store, 1, 10)
    assert form(store, others=(tier,)).generation == 2
    commit(tier, 2, 20)
    assert form(tier).generation == 3


def test_a_job_whose_commits_are_all_damaged_never_starts_from_the_beginning(store: Store):
    form(store)
    commit(store, 1, 10)
    store.create(damaged_name(CommitRef(generation=1, step=10)), b"{}")
    with pytest.raises(CommitsLostError, match="every one of them is damaged or gone"):
        form(store)
    assert read_history(store).newest == 1


@pytest.fixture
def replacing(s3_uri: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store behind an S3 server that replaces objects which are to be created only if absent."""
    with S3Proxy(s3_endpoint) as proxy:
        proxy.forgets.add("if-none-match")
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield open_store(s3_uri)


def test_a_store_that_replaces_what_is_there_is_refused_as_root_and_as_further_tier(store: Store, replacing: Store):
    with pytest.raises(ConfigError, match=r"replaces an object that was to be created only if absent; no job"):
        form(replacing)
    form(store)
    commit(store, 1, 10)
    for go_on in (form, rewind_to_the_first):
        with pytest.raises(ConfigError, match=f"{replacing.uri}: replaces an object"):
            go_on(store, others=(replacing,))
    assert (read_history(store).newest, replacing.sizes("")) == (1, {})


def test_a_formation_that_lost_or_found_no_storage_leaves_no_token(store: Store):
    def taken(operation: str, name: str) -> None:
        if operation == "create" and name.startswith("generations/"):
            store.create(name, b"{}")

    def full(operation: str, name: str) -> None:
        if operation == "create" and name.startswith("generations/"):
            raise StoreUnavailable("no space left")

    for hook, error in ((full, StoreUnavailable), (taken, GenerationLostError)):
        with pytest.raises(error):
            form(Hooked(store, hook), token="secret")
        assert store.sizes("tokens/") == {}


def test_a_token_is_kept_until_it_is_removed_and_never_on_a_further_tier(store: Store, tier: Store):
    formed = form(store, others=(tier,), token="secret")
    assert read_token(store, formed.token_name) == "secret"
    assert "secret" not in formed.model_dump_json()
    assert tier.sizes("tokens/") == {}
    remove_tokens(store, formed.generation - 1)
    assert list(store.sizes("tokens/")) == [f"tokens/{formed.token_name}"]
    remove_tokens(store, formed.generation)
    assert store.sizes("tokens/") == {}


def test_a_generation_that_an_older_version_wrote_with_its_token_is_read(store: Store):
    formed = form(store)
    plain = formed.model_dump(mode="json", exclude={"token_name"}) | {"control": "h:2", "token": "long over"}
    store.write(formed.name, json.dumps(plain).encode())
    commit(store, 1, 10)
    assert form(store).parent == CommitRef(generation=1, step=10)
    assert read_history(store).generations[1].control == "h:2"


def test_a_further_tier_that_takes_no_writes_keeps_no_generation_from_being_formed(store: Store, tier: Store):
    def full(operation: str, name: str) -> None:
        if operation in ("create", "prove"):
            raise StoreUnavailable("no space left")

    assert form(store, others=(Hooked(tier, full),)).generation == 1


@pytest.mark.parametrize("what", ["formation", "rewind"])
def test_the_parent_is_held_on_every_tier_while_its_generation_is_made(store: Store, tier: Store, what: str):
    form(store, others=(tier,))
    for where in (store, tier):
        commit(where, 1, 10)
    held: list[bool] = []

    def before(operation: str, name: str) -> None:
        if operation == "create" and name.startswith("generations/"):
            held.append(leased_commits(store) == leased_commits(tier) == {CommitRef(generation=1, step=10)})

    hooked = Hooked(store, before)
    if what == "rewind":
        rewind(hooked, 10, (tier,))
    else:
        form(hooked, others=(tier,))
    assert (held, leased_commits(store), read_history(tier).newest) == ([True], frozenset(), 2)


def pruned_meanwhile(store: Store) -> Hooked:
    """A store whose commits are removed right after they were listed first, and a newer one is made."""
    listed = list[str]()

    def after(operation: str, name: str) -> None:
        if (operation, name) == ("sizes", "commits/") and not listed:
            listed.extend(store.sizes(name))
            commit(store, 1, 20)
            for each in listed:
                store.delete(each)

    return Hooked(store, after=after)


def test_a_rewind_to_a_commit_that_was_pruned_meanwhile_is_refused_and_changes_nothing(store: Store):
    form(store)
    commit(store, 1, 10)
    with pytest.raises(ConfigError, match=r"--to 10: commits/000001-000000010.json was pruned just now"):
        rewind(pruned_meanwhile(store), 10)
    assert newest_commit(read_history(store)) == CommitRef(generation=1, step=20)


def test_a_formation_whose_parent_was_pruned_meanwhile_goes_on_from_the_newer_commit(store: Store):
    form(store)
    commit(store, 1, 10)
    formed = form(pruned_meanwhile(store))
    assert (formed.generation, formed.parent) == (2, CommitRef(generation=1, step=20))
