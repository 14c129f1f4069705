"""Between saves a commit is copied, read back and pruned, and each of it says what came of it; a save comes first."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from convoy.checkpoint import marks
from convoy.checkpoint.format import CHUNK_BYTES, Commit, file_name
from convoy.checkpoint.housekeeping import Housekeeping
from convoy.checkpoint.inbox import Inbox
from convoy.checkpoint.messages import AfterCommit, Committed, Copied, PartVerified, Pruned, Report, WriterSetup
from convoy.config.checkpoint import StoreConfig
from convoy.job.lineage import CommitRef
from convoy.storage import Store, StoreUnavailable, open_store
from tests.checkpoint.torchless import TinyState, form, newest, restored
from tests.checkpoint.writers import WAIT_SECONDS, writers

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
    """Housekeeping in its thread, and what it reported."""

    def __init__(self, stores: dict[str, Any]) -> None:
        self.inbox, self.reports = Inbox(), list[Report]()
        setup = WriterSetup(tiers=["root"], store=StoreConfig(), keep_last=1, keep_every_steps=None)
        known: Any = Known(stores)
        keeping = Housekeeping(setup, known, self.inbox, self.reports.append)
        self._thread = threading.Thread(target=keeping.run, daemon=True)
        self._thread.start()

    def ask(self, ref: CommitRef, writer: int = 0, **fields: Any) -> None:
        self.inbox.put(AfterCommit(ref=ref, tier="root", writer=writer, generation=1, **fields))

    def end(self) -> list[Report]:
        self.inbox.close()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        return self.reports


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
            kept[writer].ask(commit.ref, writer, verify_part=1 - writer, copy_to=["tier"])
            kept[writer].end()
    last = Kept({"root": root, "tier": tier})
    last.ask(commits[1].ref, prune=True)

    assert [type(report) for report in kept[0].reports] == [Copied, PartVerified, PartVerified]
    copied, verified, _ = kept[0].reports
    assert isinstance(copied, Copied)
    assert (copied.ref, copied.to, copied.bytes, copied.error) == (commits[1].ref, "tier", 8000, None)
    assert isinstance(verified, PartVerified)
    assert (verified.part, verified.error, verified.damaged) == (1, None, False)
    (pruned,) = last.end()
    assert isinstance(pruned, Pruned)
    assert (pruned.commits, pruned.error) == ([commits[0].ref], None)
    # Of a further tier the newest copy that has come there: writer 1 was done before the copy of step 6 was committed.
    read_back = [(report.tier, report.ref.step, report.part) for k in kept for report in k.reports[-2:]]
    assert read_back == [("root", 6, 1), ("tier", 6, 1), ("root", 6, 0), ("tier", 5, 0)]
    assert marks.verified(tier) == {commits[0].ref}
    assert newest(root) == commits[1].ref
    assert restored(tier, commits[1].ref) == [STATE.data(0, 6), STATE.data(1, 6)]


def test_damage_is_told_from_an_outage_and_from_what_was_pruned(root: Store) -> None:
    commits = [STATE.save(root, step, attempt=str(step)) for step in (5, 6, 7)]
    root.write(commits[0].shards + file_name(1, 0), bytes(3000))
    root.delete(commits[1].ref.name)
    told = list[tuple[bool, bool]]()
    for stores, commit in (({"root": root}, commits[0]), ({"root": root}, commits[1]), ({}, commits[2])):
        kept = Kept(stores)
        kept.ask(commit.ref, verify_part=1)
        (report,) = kept.end()
        assert isinstance(report, PartVerified)
        told.append((report.error is not None, report.damaged))
    assert told == [(True, True), (True, False), (True, False)]


def test_a_tier_that_is_out_of_reach_fails_its_own_copy_alone(root: Store, tier: Store) -> None:
    commit = TinyState(sizes=(100,)).save(root, 5)
    kept = Kept({"root": root, "tier": tier})
    kept.ask(commit.ref, copy_to=["away", "tier"], verify_part=0, prune=True)
    reports = kept.end()
    assert [(report.to, report.error) for report in reports if isinstance(report, Copied)] == [
        ("away", "away is out of reach"),
        ("tier", None),
    ]
    assert [report.error for report in reports if isinstance(report, Pruned)] == [None, "away is out of reach", None]
    told = [(report.tier, report.error) for report in reports if isinstance(report, PartVerified)]
    assert told == [("root", None), ("tier", None)]


def test_nothing_is_pruned_while_the_root_cannot_tell_who_is_newest(tier: Store) -> None:
    kept = Kept({"tier": tier})
    kept.inbox.put(AfterCommit(ref=CommitRef(generation=1, step=1), tier="tier", writer=0, generation=1, prune=True))
    (report,) = kept.end()
    assert isinstance(report, Pruned)
    assert report.error is not None
    assert report.error.startswith("the root is out of reach")


class Telling:
    """A store that counts chunks as they are read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.chunks = 0
        self.first = threading.Event()
        self.may_go_on = threading.Event()

    def read_into(self, name: str, start: int, buffer: memoryview) -> int:
        self.chunks += 1
        self.first.set()
        self.may_go_on.wait(WAIT_SECONDS)
        return self._store.read_into(name, start, buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_save_interrupts_it_between_two_chunks_and_it_goes_on_afterwards(root: Store) -> None:
    state = TinyState(sizes=(4 * 4096,), chunk_bytes=4096)
    commit, store = state.save(root, 5), Telling(root)
    kept = Kept({"root": store})
    kept.ask(commit.ref, verify_part=0)
    assert store.first.wait(WAIT_SECONDS)
    kept.inbox.put(state.request("root", 0, 6))
    kept.inbox.next()
    store.may_go_on.set()
    time.sleep(0.1)  # time in which it could go on, and must not
    assert store.chunks == 1
    assert kept.reports == []

    kept.inbox.written()

    (report,) = kept.end()
    assert isinstance(report, PartVerified)
    assert report.error is None
    assert store.chunks == 4


@pytest.fixture
def large() -> TinyState:
    """Two chunks on one writer, so that a copy to S3 has several parts."""
    return TinyState(sizes=(CHUNK_BYTES + 1000,))


@pytest.fixture
def places(tmp_path: Path, s3_uri: str) -> tuple[Store, Store]:
    root, tier = open_store(str(tmp_path / "root")), open_store(s3_uri)
    form(root, tier)
    return root, tier


def test_the_writer_process_does_it_all(places: tuple[Store, Store], large: TinyState, tmp_path: Path) -> None:
    root, tier = places
    with writers(tmp_path, [root.uri, tier.uri], large) as gang:
        process = gang.processes[0]
        commits = list[Commit]()
        for step in (5, 6):
            gang.write(root.uri, 0, step, attempt=str(step))
            commits.append(gang.await_report(0, Committed).commit)
            asked = AfterCommit(
                ref=commits[-1].ref,
                tier=root.uri,
                writer=0,
                verify_part=0,
                drop_cache=True,
                copy_to=[tier.uri],
                prune=True,
                generation=1,
            )
            process.send(asked)
            gang.await_report(0, Copied)
            assert gang.await_report(0, PartVerified).error is None
            pruned = [gang.await_report(0, Pruned) for _ in range(2)]
        assert [report.error for report in pruned] == [None, None]
    assert pruned[0].commits == [commits[0].ref]
    assert newest(root) == commits[1].ref
    assert restored(tier, commits[1].ref) == restored(root, commits[1].ref) == [large.data(0, 6)]
