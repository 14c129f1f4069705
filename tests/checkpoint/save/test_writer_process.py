"""What the trainer does with its writer process never waits for it, whatever state that is in."""

import functools
import os
import signal
import time
from pathlib import Path

import pytest

from convoy.checkpoint.format import TensorShard
from convoy.checkpoint.messages import Committed, Ready, Requested, SetLayout, WriterSetup
from convoy.checkpoint.save.writer_client import WriterProcess
from convoy.config.checkpoint import StoreConfig
from convoy.storage import open_store
from tests.checkpoint.torchless import TinyState, form
from tests.checkpoint.writer.test_main import pid_of, wait_for
from tests.checkpoint.writers import writers

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
        asked = [each for report in reports if isinstance(report, Requested) for each in report.requests]
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


def test_one_that_was_not_started_says_so() -> None:
    process = WriterProcess(WriterSetup(tiers=["/x"], store=StoreConfig(), keep_last=1, keep_every_steps=None))
    with pytest.raises(RuntimeError, match="was not started"):
        process.poll()


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
