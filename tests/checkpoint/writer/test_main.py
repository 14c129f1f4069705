"""The writer process: it writes and commits what it is asked to, says what failed, and never outlives its parent."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from convoy.checkpoint.commits import read_commit
from convoy.checkpoint.format import CHUNK_BYTES
from convoy.checkpoint.messages import Committed, Hurry, PartWritten, SaveFailed, SetLayout
from convoy.checkpoint.save.commit_lookup import find_commit
from convoy.checkpoint.writer.__main__ import NICENESS
from convoy.config.checkpoint import StoreConfig
from convoy.job.lineage import CommitRef
from convoy.storage import Store, open_store
from tests.checkpoint.torchless import TinyState, form, newest, restored
from tests.checkpoint.writers import WAIT_SECONDS, Writers, wait_for, writers
from tests.test_import_time import python, relative_cpu_time

STATE = TinyState()


@pytest.fixture(scope="module")
def shared_gang(tmp_path_factory: pytest.TempPathFactory, s3_endpoint: str, gcs_endpoint: str) -> Iterator[Writers]:
    """Two writer processes that many tests ask; their root is a place that no test writes to."""
    folder = tmp_path_factory.mktemp("gang")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("STORAGE_EMULATOR_HOST", gcs_endpoint)
        with writers(folder, [str(folder / "root")], STATE, StoreConfig(endpoint_url=s3_endpoint)) as gang:
            yield gang


@pytest.fixture
def gang(shared_gang: Writers) -> Writers:
    shared_gang.begin()
    return shared_gang


@pytest.fixture
def store(store_uri: str) -> Store:
    """Where generation 1 of a job has begun."""
    store = open_store(store_uri)
    form(store)
    return store


@pytest.fixture
def local(tmp_path: Path) -> Store:
    store = open_store(str(tmp_path / "store"))
    form(store)
    return store


def pid_of(gang: Writers, writer: int) -> int:
    process = gang.processes[writer]._process
    assert process is not None
    return process.pid


def gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def test_what_is_staged_is_committed_and_restored(gang: Writers, store: Store) -> None:
    for writer in range(2):
        gang.write(store.uri, writer, 5)

    committed = gang.await_report(0, Committed)

    assert committed.attempt == committed.commit.attempt == f"{gang.session}-a"
    assert committed.commit == read_commit(store, committed.commit.ref)
    assert restored(store, committed.commit.ref) == [STATE.data(0, 5), STATE.data(1, 5)]
    assert [gang.await_report(writer, PartWritten).bytes for writer in range(2)] == [5000, 3000]
    assert 0 < committed.seconds < WAIT_SECONDS


def test_a_part_that_fails_on_one_writer_fails_the_save_for_all_with_its_reason(gang: Writers, store: Store) -> None:
    gang.write(store.uri, 0, 5)
    gang.write(store.uri, 1, 5, buffer="/nowhere/staged")

    own = gang.await_report(1, SaveFailed)
    assert own.error == "[Errno 2] No such file or directory: '/nowhere/staged'"
    assert gang.await_report(0, SaveFailed).error == f"writer 1: {own.error}"
    assert newest(store) is None

    for writer in range(2):
        gang.write(store.uri, writer, 5, attempt="b")
    assert gang.await_report(0, Committed).attempt == f"{gang.session}-b"


def shards(store: Store, attempt: str) -> list[str]:
    """Names of what is there of an attempt, of whatever step."""
    return [name.split("/")[3] for name in store.sizes("shards/") if name.split("/")[2] == attempt]


def test_a_coordinator_whose_own_part_fails_leaves_word_for_those_who_wait_for_its_commit(
    gang: Writers, local: Store
) -> None:
    gang.write(local.uri, 1, 5)
    gang.await_report(1, PartWritten)
    gang.write(local.uri, 0, 5, buffer="/nowhere/staged")
    told = f"writer 0: {gang.await_report(0, SaveFailed).error}"
    ref, attempt = CommitRef(generation=1, step=5), f"{gang.session}-a"
    wait_for(lambda: find_commit(local, ref, attempt) == told)
    made = STATE.save(local, 5, attempt="b")
    assert find_commit(local, ref, attempt) == made


def test_a_commit_that_fails_is_told_to_those_who_wait_for_it_too(gang: Writers, local: Store) -> None:
    (Path(local.uri) / "commits").write_text("in the way")
    for writer in range(2):
        gang.write(local.uri, writer, 5)
    assert "commits" in gang.await_report(0, SaveFailed).error
    wait_for(lambda: "failed-00000.txt" in shards(local, f"{gang.session}-a"))


def test_what_a_failed_save_has_left_goes_though_no_commit_follows(tmp_path: Path) -> None:
    root = open_store(str(tmp_path / "root"))
    form(root)
    with writers(tmp_path, [root.uri]) as gang:
        gang.write(root.uri, 0, 5)
        gang.await_report(0, PartWritten)
        gang.write(root.uri, 1, 5, buffer="/nowhere/staged")
        gang.await_report(0, SaveFailed)
        wait_for(lambda: shards(root, "0-a") == ["failed-00001.txt"])


def test_what_a_save_has_left_stays_where_its_commit_may_be_there(tmp_path: Path) -> None:
    root = open_store(str(tmp_path / "root"))
    form(root)
    (Path(root.uri) / "commits").write_text("in the way")
    with writers(tmp_path, [root.uri]) as gang:
        for writer in range(2):
            gang.write(root.uri, writer, 5, attempt="begun")
        gang.await_report(0, SaveFailed)
        gang.write(root.uri, 0, 6, deadline_seconds=0.3)
        wait_for(lambda: shards(root, "0-a") == ["failed-00000.txt"])
        assert len(shards(root, "0-begun")) == 5  # two files, two records, and word of the failure


def test_a_save_that_is_not_complete_in_time_is_given_up(gang: Writers, local: Store) -> None:
    gang.write(local.uri, 0, 5, deadline_seconds=0.3)
    assert gang.await_report(0, SaveFailed).error == "not committed within 0.3 s"
    gang.write(local.uri, 1, 5)
    gang.await_report(1, PartWritten)
    assert newest(local) is None


def test_a_write_past_its_deadline_puts_nothing(gang: Writers, local: Store) -> None:
    gang.write(local.uri, 1, 5, deadline_seconds=0.0)
    gang.await_report(1, SaveFailed)
    assert [name for name in local.sizes("shards/") if not name.endswith(".txt")] == []


def test_the_next_write_ends_the_waiting_for_parts_that_will_not_come(gang: Writers, local: Store) -> None:
    gang.write(local.uri, 0, 5, attempt="a", deadline_seconds=600.0)
    gang.await_report(0, PartWritten)
    for writer in range(2):
        gang.write(local.uri, writer, 6, attempt="b")
    assert gang.await_report(0, SaveFailed).error == "the gang gave it up"
    assert gang.await_report(0, Committed).commit.step == 6
    assert newest(local) is not None


def test_a_place_without_the_job_is_not_mounted_and_nothing_is_written_there(gang: Writers, tmp_path: Path) -> None:
    gang.write(str(tmp_path / "mount"), 1, 5)
    assert "generations/000001.json is missing: is it mounted?" in gang.await_report(1, SaveFailed).error
    assert not (tmp_path / "mount" / "shards").exists()


def test_what_lies_in_a_buffer_is_as_the_newest_layout_says(gang: Writers, local: Store) -> None:
    gang.processes[1].send(SetLayout(shards=[], file_bytes=[1000, 1500]))
    gang.write(local.uri, 1, 5, writers=1, writer=0, draft=STATE.draft(1, 5).model_copy(update={"tensors": {}}))
    commit = gang.await_report(1, Committed).commit
    data = STATE.data(1, 5)
    assert [local.read(commit.prefix + name) for name in commit.files] == [data[:1000], data[1000:2500]]
    gang.processes[1].send(STATE.layout(1))


def test_signals_to_the_group_do_not_end_it_and_it_gives_way_to_training(gang: Writers, local: Store) -> None:
    gang.write(local.uri, 0, 5)
    gang.await_report(0, PartWritten)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(pid_of(gang, 0), number)
    gang.write(local.uri, 1, 5)
    assert gang.await_report(0, Committed).commit.step == 5
    assert os.getpriority(os.PRIO_PROCESS, pid_of(gang, 0)) == os.getpriority(os.PRIO_PROCESS, 0) + NICENESS


def test_a_save_keeps_to_its_pace_until_somebody_waits_for_it(tmp_path: Path, local: Store) -> None:
    state = TinyState(sizes=(5 * CHUNK_BYTES,))
    seconds = list[float]()
    with writers(tmp_path, [local.uri], state, bytes_per_second=CHUNK_BYTES) as gang:
        for step, hurried in ((5, False), (6, True), (7, True)):
            if step == 7:  # the word may come before what it is about
                gang.processes[0].send(Hurry(attempt="0-7"))
            gang.write(local.uri, 0, step, attempt=str(step))
            if hurried:
                gang.processes[0].send(Hurry(attempt=f"0-{step}"))
            seconds.append(gang.await_report(0, PartWritten).seconds)
            assert gang.await_report(0, Committed).commit.step == step
    assert seconds[0] >= 4.0
    assert max(seconds[1:]) < seconds[0] / 2


def test_a_large_request_and_its_answer_go_through_the_pipes(gang: Writers, local: Store) -> None:
    mesh = {f"dimension {number}": number for number in range(20_000)}
    draft = STATE.draft(1, 5).model_copy(update={"mesh": mesh})
    gang.write(local.uri, 0, 5, draft=draft)
    gang.write(local.uri, 1, 5)
    assert gang.await_report(0, Committed).commit.mesh == mesh


def test_a_tier_that_hangs_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    root = open_store(str(tmp_path / "root"))
    form(root)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = StoreConfig(endpoint_url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        with writers(tmp_path, [root.uri, "s3://bucket/job"], STATE, endpoint) as gang:
            for writer in range(2):
                gang.write(root.uri, writer, 5)
            assert gang.await_report(0, Committed).commit.step == 5
            gang.write("s3://bucket/job", 1, 6, deadline_seconds=0.2)
            assert "did not answer" in gang.await_report(1, SaveFailed).error


PARENT = """
import os, pathlib, signal, sys, time
from convoy.checkpoint.messages import WriterSetup
from convoy.checkpoint.save.writer_client import WriterProcess
from convoy.config.checkpoint import StoreConfig
writer = WriterProcess(WriterSetup(tiers=[sys.argv[1]], store=StoreConfig(), keep_last=1, keep_every_steps=None))
writer.start()
while not writer.poll():
    time.sleep(0.01)
if os.fork() == 0:  # a child that holds the pipes open, as a data loader's worker does
    time.sleep(60)
    os._exit(0)
print(writer._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_ends_when_its_parent_is_killed_though_a_child_of_that_holds_the_pipes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "root")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            assert parent.wait(WAIT_SECONDS) == -signal.SIGKILL
            wait_for(lambda: gone(pid))
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def test_it_imports_nothing_heavy_and_takes_little_of_a_core_to_start() -> None:
    program = "import convoy.checkpoint.writer.__main__, sys; print(*{'torch', 'metaflow', 'boto3'} & set(sys.modules))"
    assert python("-c", program) == ""
    # 2.5 times the reference when this was written: 0.2 s on an idle machine.
    assert relative_cpu_time([sys.executable, "-c", "import convoy.checkpoint.writer.__main__"]) <= 5.0
