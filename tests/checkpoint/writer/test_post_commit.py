"""Between saves a commit is copied, read back and pruned, and each of it says what came of it; a save comes first."""

import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from convoy.checkpoint.format import Commit, file_name
from convoy.checkpoint.messages import (
    Copied,
    PartVerified,
    PostCommitRequest,
    PostCommitTaskDone,
    Pruned,
    Report,
    WriterSetup,
)
from convoy.checkpoint.verify import marks
from convoy.checkpoint.writer import post_commit
from convoy.checkpoint.writer import tiers as opening
from convoy.checkpoint.writer.inbox import Inbox
from convoy.checkpoint.writer.post_commit import PostCommitWork
from convoy.checkpoint.writer.tiers import Tiers
from convoy.config.checkpoint import StoreConfig
from convoy.job.lineage import CommitRef
from convoy.storage import Store, StoreUnavailable, open_store
from tests.checkpoint.shims import Faulty, Hooked
from tests.checkpoint.torchless import TinyState, form, newest, restored
from tests.checkpoint.writers import WAIT_SECONDS, wait_for

STATE = TinyState()


class Known:
    """Tiers that are open; one without a store is out of reach."""

    def __init__(self, stores: dict[str, Any]) -> None:
        self._stores = stores

    def store(self, uri: str, timeout_seconds: float) -> Store:
        if uri not in self._stores:
            raise StoreUnavailable(f"{uri} is out of reach")
        return self._stores[uri]

    def root(self) -> Store | None:
        return self._stores.get("root")


class Kept:
    """PostCommitWork in its threads, and what it reported."""

    def __init__(self, stores: dict[str, Any], *further: str, tiers: Tiers | None = None) -> None:
        """further: tiers that are out of reach. tiers: in place of stores that are open."""
        self.inbox, self.reports = Inbox(), list[Report]()
        setup = WriterSetup(tiers=[*stores, *further], store=StoreConfig(), keep_last=1, keep_every_steps=None)
        known: Any = tiers or Known(stores)
        keeping = PostCommitWork(setup, known, self.inbox, self.reports.append)
        self._thread = threading.Thread(target=keeping.run, daemon=True)
        self._thread.start()

    def ask(self, ref: CommitRef, writer: int = 0, tier: str = "root", **fields: Any) -> None:
        self.inbox.put(PostCommitRequest(ref=ref, tier=tier, writer=writer, generation=1, **fields))

    def await_report(self, kind: type[Report], count: int = 1) -> None:
        """Wait until it has told so many of a kind."""
        wait_for(lambda: sum(isinstance(report, kind) for report in self.reports) >= count)

    def end(self) -> list[Report]:
        """What it told in all, but for what only says that a task has ended."""
        self.inbox.close()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        return [report for report in self.reports if not isinstance(report, PostCommitTaskDone)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_commit, "COPY_PAUSES_SECONDS", (0.01, 0.01))


@pytest.fixture
def root(tmp_path: Path, tier: Store) -> Store:
    store = open_store(str(tmp_path / "root"))
    form(store, tier)
    return store


@pytest.fixture
def tier(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "tier"))


def test_a_commit_is_copied_read_back_and_its_elders_pruned(root: Store, tier: Store) -> None:
    commits = [STATE.save(root, step, attempt=str(step)) for step in (5, 6)]
    for commit in commits:
        kept = [Kept({"root": root, "tier": tier}) for _ in range(2)]
        for writer in (1, 0):
            kept[writer].ask(commit.ref, writer, verify_part=1 - writer, copy_to=["tier"], verify_copies=1 - writer)
        told = [one.end() for one in kept]
    last = Kept({"root": root, "tier": tier})
    last.ask(commits[1].ref, prune=True)

    (copied,) = [report for report in told[0] if isinstance(report, Copied)]
    assert (copied.ref, copied.to, copied.bytes, copied.error) == (commits[1].ref, "tier", 8000, None)
    assert not any(isinstance(report, Copied) for report in told[1])
    (pruned,) = last.end()
    assert isinstance(pruned, Pruned)
    assert (pruned.commits, pruned.error) == ([commits[0].ref], None)
    read_back = [{(r.tier, r.ref.step, r.part, r.error) for r in one if isinstance(r, PartVerified)} for one in told]
    assert read_back == [{("root", 6, 1 - writer, None), ("tier", 6, 1 - writer, None)} for writer in range(2)]
    assert marks.verified_in(tier) == {commit.ref for commit in commits}
    assert newest(root) == commits[1].ref
    assert restored(tier, commits[1].ref) == [STATE.data(0, 6), STATE.data(1, 6)]


def test_the_end_of_each_task_is_told_after_what_came_of_it(root: Store, tier: Store) -> None:
    commit = TinyState(sizes=(100,)).save(root, 5)
    kept = Kept({"root": root, "tier": tier}, "away")
    kept.ask(commit.ref, verify_part=0, copy_to=["tier", "away"], verify_copies=0)
    kept.end()
    by_tier = {
        uri: [
            type(report) for report in kept.reports if uri in (getattr(report, "tier", ""), getattr(report, "to", ""))
        ]
        for uri in ("root", "tier", "away")
    }
    assert by_tier == {
        "root": [PartVerified, PostCommitTaskDone],
        "tier": [Copied, PartVerified, PostCommitTaskDone],
        "away": [Copied, PostCommitTaskDone],
    }
    done = {(r.task, r.tier, r.ref) for r in kept.reports if isinstance(r, PostCommitTaskDone)}
    assert done == {
        ("reading_back", "root", commit.ref),
        ("copying", "tier", commit.ref),
        ("copying", "away", commit.ref),
    }


def test_damage_is_told_from_an_outage_and_from_what_was_pruned(root: Store) -> None:
    commits = [STATE.save(root, step, attempt=str(step)) for step in (5, 6, 7)]
    root.write(commits[0].prefix + file_name(1, 0), bytes(3000))
    root.delete(commits[1].ref.name)
    told = list[tuple[bool, bool]]()
    for stores, commit in (({"root": root}, commits[0]), ({"root": root}, commits[1]), ({}, commits[2])):
        kept = Kept(stores, *({"root"} - stores.keys()))
        kept.ask(commit.ref, verify_part=1)
        (report,) = kept.end()
        assert isinstance(report, PartVerified)
        told.append((report.error is not None, report.damaged))
    assert told == [(True, True), (True, False), (True, False)]


def test_a_tier_that_is_out_of_reach_fails_its_own_copy_alone(root: Store, tier: Store) -> None:
    commit = TinyState(sizes=(100,)).save(root, 5)
    kept = Kept({"root": root, "tier": tier}, "away")
    kept.ask(commit.ref, copy_to=["away", "tier"], verify_part=0, verify_copies=0, prune=True)
    reports = kept.end()
    copied = {report.to: report.error for report in reports if isinstance(report, Copied)}
    assert copied == {"away": "away is out of reach", "tier": None}
    pruned = [report.error for report in reports if isinstance(report, Pruned)]
    assert sorted(map(str, pruned)) == ["None", "None", "away is out of reach"]
    told = {report.tier: report.error for report in reports if isinstance(report, PartVerified)}
    assert told == {"root": None, "tier": None}


def test_a_further_tier_that_hangs_holds_up_neither_the_commits_own_nor_another(root: Store, tier: Store) -> None:
    state = TinyState(sizes=(100,))
    commits = [state.save(root, step, attempt=str(step)) for step in (5, 6, 7)]
    reached, may_go_on = threading.Event(), threading.Event()
    store = Hooked(tier, lambda *_: (reached.set(), may_go_on.wait(WAIT_SECONDS)))
    kept = Kept({"root": root, "hangs": store})
    kept.ask(commits[0].ref, copy_to=["hangs"], verify_part=0, verify_copies=0, prune=True)
    assert reached.wait(WAIT_SECONDS)
    kept.await_report(Pruned)  # two that are asked for at once are one
    for count, commit in enumerate(commits[1:], 2):
        kept.ask(commit.ref, verify_part=0, prune=True)
        kept.await_report(Pruned, count)

    told = [report for report in kept.reports if not isinstance(report, PostCommitTaskDone)]
    assert [report.error for report in told if isinstance(report, PartVerified | Pruned)] == [None] * 6
    assert marks.verified_in(root) == {commits[-1].ref}
    assert newest(root) == commits[-1].ref
    assert not any(isinstance(report, Copied) for report in told)
    may_go_on.set()
    assert sum(isinstance(report, Copied) for report in kept.end()) == 1


def copied_by_two(root: Store, tiers: list[Any], commit: Commit, **fields: Any) -> list[list[Report]]:
    """What two writers tell of copying a commit, each with its view of the tier."""
    kept = [Kept({"root": root, "tier": tier}) for tier in tiers]
    for writer, one in enumerate(kept):
        one.ask(commit.ref, writer, copy_to=["tier"], verify_copies=1 - writer, **fields)
    for one in kept:
        one.await_report(PostCommitTaskDone)
    return [one.end() for one in kept]


@pytest.mark.parametrize("writer", [0, 1])
def test_a_copy_that_the_storage_does_not_take_at_once_is_tried_again(root: Store, tier: Store, writer: int) -> None:
    commit, seen = STATE.save(root, 5), [tier, tier]
    seen[writer] = Faulty(tier, refused_puts=2)
    told = copied_by_two(root, seen, commit)
    assert [report.error for report in told[0] if isinstance(report, Copied)] == [None]
    assert marks.verified_in(tier) == {commit.ref}


@pytest.mark.parametrize("writer", [0, 1])
def test_when_a_writer_cannot_copy_nobody_waits_for_it(root: Store, tier: Store, writer: int) -> None:
    commits = [STATE.save(root, step, attempt=str(step)) for step in (5, 6)]
    seen: list[Any] = [tier, tier]
    seen[writer] = Faulty(tier, refused_puts=math.inf)
    began = time.monotonic()
    told = copied_by_two(root, seen, commits[0])
    assert time.monotonic() - began < WAIT_SECONDS
    errors = [[report.error for report in one if isinstance(report, Copied)] for one in told]
    assert errors == ([["no space"], []] if writer == 0 else [["writer 1: no space"], ["no space"]])

    copied_by_two(root, [tier, tier], commits[1], prune=True)
    assert newest(tier) == commits[1].ref
    assert marks.verified_in(tier) == {commits[1].ref}
    assert {name.split("/")[2] for name in tier.sizes("shards/")} == {commits[1].attempt}  # the word is gone too


def test_who_is_to_end_tries_a_copy_only_once_more(root: Store, tier: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_commit, "COPY_PAUSES_SECONDS", (0.01, 10 * WAIT_SECONDS))
    seen = Faulty(tier, refused_puts=1000)
    kept = Kept({"root": root, "tier": seen})
    kept.ask(STATE.save(root, 5).ref, copy_to=["tier"])
    (copied,) = kept.end()
    assert isinstance(copied, Copied)
    assert copied.error == "no space"
    assert 2 <= 1000 - seen.refused_puts <= 3


def test_who_comes_late_copies_nothing_for_a_copy_that_has_failed(root: Store, tier: Store) -> None:
    commit = STATE.save(root, 5)
    late, kept = Faulty(tier), Kept({"root": root, "tier": Faulty(tier, refused_puts=math.inf)})
    kept.ask(commit.ref, 1, copy_to=["tier"], verify_copies=0)
    kept.end()
    kept = Kept({"root": root, "tier": late})
    kept.ask(commit.ref, 0, copy_to=["tier"], verify_copies=1)
    (copied,) = kept.end()
    assert isinstance(copied, Copied)
    assert copied.error == "writer 1: no space"
    assert [name for name in tier.sizes("shards/") if name.endswith(".bin")] == []


def test_a_root_that_hangs_costs_a_further_tier_only_its_pruning(
    root: Store, tier: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = TinyState(sizes=(100,))
    seen, released = Faulty(root), threading.Event()
    stores: dict[str, Any] = {"root": seen, "tier": tier}
    monkeypatch.setattr(opening, "open_store", lambda uri, config: stores[uri])
    monkeypatch.setattr(opening, "ROOT_SECONDS", 0.2)
    tiers = Tiers([*stores], StoreConfig())
    for uri in stores:
        tiers.store(uri, WAIT_SECONDS)
    seen.hang("generations/", released)

    kept = Kept(stores, tiers=tiers)
    commits = [state.save(tier, step, attempt=str(step)) for step in (5, 6)]
    for count, commit in enumerate(commits, 1):
        kept.ask(commit.ref, tier="tier", verify_part=0, prune=True)
        kept.await_report(Pruned, count)
    released.set()

    told = kept.end()
    assert [report.error for report in told if isinstance(report, PartVerified)] == [None, None]
    pruned = [report for report in told if isinstance(report, Pruned)]
    assert [report.commits for report in pruned] == [[], []]
    assert all((report.error or "").endswith("did not answer within 0.2 s") for report in pruned)
    assert marks.verified_in(tier) == {commit.ref for commit in commits}


def test_nothing_is_pruned_while_the_root_cannot_tell_who_is_newest(tier: Store) -> None:
    kept = Kept({"tier": tier}, "root")
    kept.ask(CommitRef(generation=1, step=1), tier="tier", prune=True)
    (report,) = kept.end()
    assert isinstance(report, Pruned)
    assert report.error is not None
    assert report.error.startswith("the root is out of reach")


def test_what_a_failed_save_has_left_goes_though_no_commit_follows(root: Store, tier: Store) -> None:
    commit = STATE.save(root, 5)
    for store in (root, tier):
        STATE.write(store, STATE.request(store.uri, 1, 6, attempt="over"))
        STATE.write(store, STATE.request(store.uri, 1, 6, attempt="another"))
    kept = Kept({"root": root, "tier": tier})
    kept.inbox.put(STATE.request("tier", 0, 6))
    kept.inbox.next_request()
    kept.inbox.note_abandoned("over", "tier", 1)
    assert kept.reports == []
    kept.inbox.end_write()
    kept.await_report(Pruned)

    (pruned,) = kept.end()
    assert isinstance(pruned, Pruned)
    assert (pruned.commits, pruned.attempts, pruned.error) == ([], 1, None)
    left = {name.split("/")[2] for name in tier.sizes("shards/")}
    assert left == {"another"}
    assert {name.split("/")[2] for name in root.sizes("shards/")} == {commit.attempt, "over", "another"}


def test_the_next_pruning_after_a_commit_knows_of_failed_saves_too(root: Store) -> None:
    STATE.write(root, STATE.request(root.uri, 1, 6, attempt="late"))
    kept = Kept({"root": root})
    kept.inbox.note_abandoned("late", "root", 1)
    kept.await_report(Pruned)
    STATE.write(root, STATE.request(root.uri, 1, 6, attempt="late"))  # by a writer that had not heard of it
    commit = STATE.save(root, 7)
    kept.ask(commit.ref, prune=True)
    kept.end()
    assert {name.split("/")[2] for name in root.sizes("shards/")} == {commit.attempt}


def test_a_save_interrupts_it_between_two_chunks_and_it_goes_on_afterwards(root: Store) -> None:
    state = TinyState(sizes=(4 * 4096,), chunk_bytes=4096)
    commit, chunks = state.save(root, 5), list[str]()
    first, may_go_on = threading.Event(), threading.Event()

    def before(operation: str, name: str) -> None:
        if operation == "read_into":
            chunks.append(name)
            first.set()
            may_go_on.wait(WAIT_SECONDS)

    kept = Kept({"root": Hooked(root, before)})
    kept.ask(commit.ref, verify_part=0)
    assert first.wait(WAIT_SECONDS)
    kept.inbox.put(state.request("root", 0, 6))
    kept.inbox.next_request()
    may_go_on.set()
    time.sleep(0.1)  # time in which it could go on, and must not
    assert len(chunks) == 1
    assert kept.reports == []

    kept.inbox.end_write()

    (report,) = kept.end()
    assert isinstance(report, PartVerified)
    assert report.error is None
    assert len(chunks) == 4
