"""A rank's writer process as the trainer sees it: what it has still to do is known without a wait for it."""

import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from convoy.checkpoint.format import TensorShard
from convoy.checkpoint.messages import (
    Committed,
    PartWritten,
    PostCommitRequest,
    PostCommitTask,
    PostCommitTaskDone,
    Ready,
    Report,
    Request,
    RequestsSent,
    SetLayout,
    WritePart,
    WriterSetup,
)
from convoy.checkpoint.save import writer_client
from convoy.checkpoint.save.post_commit import BusyTiers
from convoy.checkpoint.save.writer_client import WriterClient, WriterProcess
from convoy.config.checkpoint import StoreConfig
from convoy.job.lineage import CommitRef
from convoy.storage import open_store
from convoy.storage.usage import BucketRequests, request_counter
from tests.checkpoint.torchless import TinyState, form
from tests.checkpoint.writer.test_main import pid_of
from tests.checkpoint.writers import wait_for, writers

TIERS = ["root", "near", "far"]


class Process:
    """A writer process that says what it is told to say."""

    def __init__(self, setup: WriterSetup) -> None:
        self.reports: list[Report] = []
        self.sent: list[Request] = []
        self.lives = True

    def start(self) -> None: ...

    def send(self, request: Request) -> None:
        self.sent.append(request)

    def poll(self) -> list[Report]:
        reports, self.reports = self.reports, []
        return reports

    def alive(self) -> bool:
        return self.lives

    def ended(self) -> bool:
        return not self.lives

    def abandon(self) -> None:
        self.lives = False


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> WriterClient:
    monkeypatch.setattr(writer_client, "WriterProcess", Process)
    made = WriterClient(WriterSetup(tiers=TIERS, store=StoreConfig(), keep_last=1, keep_every_steps=None))
    made.start()
    return made


def process(client: WriterClient) -> Any:
    return client._writer


def ask(client: WriterClient, step: int, **fields: Any) -> None:
    ref = CommitRef(generation=1, step=step)
    client.request_post_commit(PostCommitRequest(ref=ref, tier="root", writer=0, generation=1, **fields))


def done(client: WriterClient, task: PostCommitTask, step: int, tier: str) -> None:
    process(client).reports.append(PostCommitTaskDone(task=task, ref=CommitRef(generation=1, step=step), tier=tier))


def test_a_task_is_under_way_from_when_it_is_asked_until_its_end_is_told(client: WriterClient) -> None:
    assert client.busy() == BusyTiers()
    ask(client, 1, verify_part=0, copy_to=["near", "far"])
    assert client.busy() == BusyTiers(reading_back=frozenset({0}), copying=frozenset({1, 2}))
    done(client, "reading_back", 1, "root")
    assert client.busy() == BusyTiers(copying=frozenset({1, 2}))
    done(client, "copying", 1, "near")
    assert client.busy() == BusyTiers(copying=frozenset({2}))
    done(client, "copying", 1, "far")
    assert client.busy() == BusyTiers()


def test_pruning_alone_makes_nobody_busy(client: WriterClient) -> None:
    ask(client, 1, prune=True)
    assert client.busy() == BusyTiers()
    assert len(process(client).sent) == 1


def test_the_end_of_an_earlier_task_is_not_that_of_the_newest(client: WriterClient) -> None:
    ask(client, 1, verify_part=0)
    ask(client, 2, verify_part=0)
    done(client, "reading_back", 1, "root")
    assert client.busy() == BusyTiers(reading_back=frozenset({0}))
    done(client, "reading_back", 2, "root")
    assert client.busy() == BusyTiers()


def test_a_process_that_replaces_one_that_died_has_nothing_to_end(client: WriterClient) -> None:
    ask(client, 1, verify_part=0, copy_to=["near"])
    process(client).lives = False
    client.expect("a", 10.0, coordinator=True)
    assert process(client).lives
    assert client.busy() == BusyTiers()


def test_nothing_is_asked_of_a_process_that_is_not_there(client: WriterClient) -> None:
    client._writer = None
    ask(client, 1, verify_part=0, copy_to=["near"])
    assert client.busy() == BusyTiers()


# A process that hangs.


def submit(client: WriterClient, name: str, deadline_seconds: float = 900.0) -> None:
    state = client.expect(name, deadline_seconds, coordinator=False)
    client.send(state, SetLayout(shards=[], file_bytes=[]), part(name))


def part(name: str) -> WritePart:
    fields: Any = {"tier": "root", "buffer": "", "generation": 1, "step": 1, "attempt": name, "values": []}
    return WritePart(**fields, writer=0, writers=1, draft=None, deadline_seconds=9.0)


def failed(client: WriterClient, name: str) -> bool:
    state = client.poll_attempt(name)
    assert state is not None
    return state.status.failed == 1


def attempts(client: WriterClient) -> list[str]:
    return [request.attempt for request in process(client).sent if isinstance(request, WritePart)]


def test_what_waits_behind_an_attempt_that_hangs_is_written_by_a_new_process(
    client: WriterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = process(client)
    submit(client, "hangs")
    client.forget("hangs")  # the gang has moved the save to another tier
    monkeypatch.setattr(writer_client, "GRACE_SECONDS", -1.0)
    submit(client, "behind")
    assert not failed(client, "behind")
    assert not hung.lives
    assert attempts(client) == ["behind"]
    assert isinstance(process(client).sent[0], SetLayout)
    process(client).reports.append(PartWritten(attempt="behind", bytes=1, seconds=1.0))
    state = client.poll_attempt("behind")
    assert state is not None
    assert state.written


def test_an_attempt_that_hangs_is_not_tried_again(client: WriterClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_client, "GRACE_SECONDS", -1.0)
    submit(client, "hangs", deadline_seconds=0.0)
    assert failed(client, "hangs")
    assert attempts(client) == []


def test_where_two_processes_in_a_row_hang_there_is_none_that_waits_for_a_third(
    client: WriterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(client, "hangs")
    client.forget("hangs")
    monkeypatch.setattr(writer_client, "GRACE_SECONDS", -1.0)
    submit(client, "hangs too")
    assert not failed(client, "hangs too")
    client.forget("hangs too")
    submit(client, "behind")
    assert failed(client, "behind")
    assert client._writer is None


def test_what_the_process_asked_of_buckets_is_counted_with_the_ranks_own(client: WriterClient) -> None:
    request_counter().take()
    request_counter().add(BucketRequests(bucket="b", gets=1))
    process(client).reports.append(RequestsSent(requests=[BucketRequests(bucket="b", region="us-west-2", puts=3)]))
    client.collect_reports()
    assert client.take_reports() == []
    assert request_counter().take() == [BucketRequests(bucket="b", region="us-west-2", puts=3, gets=1)]


ONE = TinyState(sizes=(100,))
AT_ONCE_SECONDS = 10.0


def large_layout() -> SetLayout:
    """Far more than a pipe takes."""
    shard = TensorShard(name="w" * 100, dtype="uint8", shape=[1], offset=[0], size=[1], file=0, start=0, bytes=1)
    return SetLayout(shards=[shard] * 10_000, file_bytes=[1])


def test_nothing_waits_for_a_process_that_is_stopped(tmp_path: Path) -> None:
    root = open_store(str(tmp_path / "root"))
    form(root)
    with writers(tmp_path, [root.uri], ONE) as gang:
        gang.await_report(0, Ready)
        os.kill(pid_of(gang, 0), signal.SIGSTOP)
        process, layout = gang.processes[0], large_layout()
        began = time.monotonic()

        for _ in range(3):
            process.send(layout)
        gang.write(root.uri, 0, 5)
        assert process.poll() == []
        assert process.alive()
        process.abandon()

        assert time.monotonic() - began < AT_ONCE_SECONDS
        wait_for(lambda: not process.alive())
        assert root.sizes("shards/") == {}


def test_a_stopped_process_goes_on_where_it_was(tmp_path: Path) -> None:
    root = open_store(str(tmp_path / "root"))
    form(root)
    with writers(tmp_path, [root.uri], ONE) as gang:
        os.kill(pid_of(gang, 0), signal.SIGSTOP)
        gang.processes[0].send(large_layout())
        gang.processes[0].send(ONE.layout(0))
        gang.write(root.uri, 0, 5)
        os.kill(pid_of(gang, 0), signal.SIGCONT)
        assert gang.await_report(0, Committed).commit.step == 5


def test_a_process_that_ended_is_seen_and_what_it_told_is_not_lost(tmp_path: Path) -> None:
    with writers(tmp_path, [str(tmp_path / "root")], ONE) as gang:
        process = gang.processes[0]
        wait_for(lambda: (tmp_path / "root" / "proofs").is_dir() and not any((tmp_path / "root" / "proofs").iterdir()))
        told = []
        wait_for(lambda: bool(told.extend(process.poll()) or told))
        os.kill(pid_of(gang, 0), signal.SIGKILL)
        wait_for(lambda: not process.alive())
        assert [type(report) for report in told] == [Ready]
        assert process.poll() == []
        process.send(ONE.layout(0))  # lost, and no error


def test_close_lets_what_is_under_way_end_and_gives_the_last_reports(tmp_path: Path) -> None:
    root = open_store(str(tmp_path / "root"))
    form(root)
    with writers(tmp_path, [root.uri], ONE) as gang:
        gang.write(root.uri, 0, 5)
        reports = gang.processes[0].close(30.0)
        assert [report.kind for report in reports if report.kind != "ready"] == ["part_written", "committed"]
        assert not gang.processes[0].alive()


def test_a_process_tells_what_it_asked_of_a_bucket(tmp_path: Path, s3_uri: str) -> None:
    root = open_store(s3_uri)
    form(root)
    with writers(tmp_path, [s3_uri], ONE) as gang:
        gang.write(s3_uri, 0, 5)
        reports = gang.processes[0].close(30.0)
        asked = [each for report in reports if isinstance(report, RequestsSent) for each in report.requests]
        assert {each.bucket for each in asked} == {s3_uri.split("/")[2]}
        assert sum(each.puts for each in asked) >= 3  # the shard, its part's record, the commit
        assert sum(each.sent_bytes for each in asked) > 100


def test_close_gives_up_after_its_deadline(tmp_path: Path) -> None:
    root = open_store(str(tmp_path / "root"))
    form(root)
    with writers(tmp_path, [root.uri], TinyState(sizes=(100, 100))) as gang:
        gang.write(root.uri, 0, 5, deadline_seconds=600.0)  # the other part never comes
        began = time.monotonic()
        gang.processes[0].close(0.5)
        assert 0.5 <= time.monotonic() - began < 0.5 + AT_ONCE_SECONDS
        wait_for(lambda: not gang.processes[0].alive())


def told_ready(process: WriterProcess) -> bool:
    return any(isinstance(told, Ready) for told in process.poll())


def test_a_core_that_training_wants_is_training_s_unless_somebody_waits(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    form(store)
    setup = WriterSetup(tiers=[store.uri], store=StoreConfig(), keep_last=1, keep_every_steps=None)
    found = dict[bool, int]()
    for urgent in (False, True):
        process = WriterProcess(setup, urgent=urgent)
        process.start()
        wait_for(functools.partial(told_ready, process))
        assert process._process is not None
        found[urgent] = os.sched_getscheduler(process._process.pid)
        process.close(5)
    assert found == {False: os.SCHED_IDLE, True: os.SCHED_OTHER}
