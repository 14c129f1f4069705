"""What counts as progress of a worker whose script has run its last line."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from convoy.gang.workers import exit_progress
from convoy.gang.workers.exit_progress import ExitProgress, ResourceUse, resources_used_by_tree, use_between
from tests.gang.tasks import wait_for


@pytest.mark.parametrize(
    ("used", "progress"),
    [
        (ResourceUse(), False),
        (ResourceUse(cpu_seconds=1.7, io_bytes=2**20), False),  # what ten process groups poll is 0.35 s
        (ResourceUse(cpu_seconds=1.76), True),
        (ResourceUse(io_bytes=35 * 2**15), True),
    ],
)
def test_a_twentieth_of_a_core_or_32_kib_a_second_is_progress(used: ResourceUse, progress: bool) -> None:
    worker = ExitProgress(os.getpid(), 0.0, 35.0)
    worker.record_use(1.0, used)
    assert (worker.at, worker.count) == ((1.0, 1) if progress else (0.0, 0))


def test_to_compute_is_progress_for_a_time_and_to_read_or_write_begins_it_anew() -> None:
    """A daemon thread that spins would hold up the end of a gang for ever."""
    worker = ExitProgress(os.getpid(), 0.0, 35.0)
    for now in range(10, 2000, 10):
        worker.record_use(float(now), ResourceUse(cpu_seconds=10.0, io_bytes=2**20 if now <= 300 else 100))
    assert worker.at == 300 + 20 * 35 - 10


def test_processes_that_come_and_go_take_nothing_away() -> None:
    before, after = (
        {1: ResourceUse(5.0, 100), 2: ResourceUse(9.0, 900)},
        {1: ResourceUse(5.5, 110), 3: ResourceUse(1.0, 7)},
    )
    assert use_between(before, after) == ResourceUse(1.5, 17)


def test_what_a_child_of_the_worker_does_is_progress_and_to_sleep_is_none() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    copy = "import sys\nfor _ in sys.stdin: open('/dev/zero', 'rb').read(1_000_000)"
    with subprocess.Popen([sys.executable, "-c", program, copy], stdin=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        wait_for("the child", lambda: Path(f"/proc/{worker.pid}/task/{worker.pid}/children").exists)
        seconds, now = 10_000.0, 0.0
        progress = ExitProgress(worker.pid, now, seconds / 500)  # 640 KiB; 1 s on a core
        progress.update(now)
        assert (progress.at, progress.count) == (0.0, 0)

        def seen() -> bool:
            nonlocal now
            now += seconds
            assert worker.stdin is not None
            worker.stdin.write(b"\n")
            worker.stdin.flush()
            progress.update(now)
            return progress.count > 1

        wait_for("progress", seen)
        assert progress.at == now
        worker.kill()


def test_what_a_worker_sends_to_a_socket_is_progress() -> None:
    """The kernel does not count it among what a process reads and writes."""
    send = "import socket, sys\ns = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
    send += "for _ in sys.stdin: s.sendall(bytes(100_000))"
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", send, str(server.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as worker:
            connection, _ = server.accept()
            before = resources_used_by_tree(worker.pid)[worker.pid].io_bytes
            assert worker.stdin is not None
            worker.stdin.write(b"\n")
            worker.stdin.flush()
            connection.recv(100_000, socket.MSG_WAITALL)
            assert resources_used_by_tree(worker.pid)[worker.pid].io_bytes - before >= 100_000
            worker.kill()
            connection.close()


def test_sockets_that_come_and_go_or_may_not_be_looked_at_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    churn = "import socket\nwhile True: socket.socket().close()"
    with subprocess.Popen([sys.executable, "-c", churn]) as worker:
        for _ in range(300):
            assert resources_used_by_tree(worker.pid)[worker.pid].io_bytes >= 0
        monkeypatch.setattr(exit_progress, "_PIDFD_GETFD", -1)  # no such call
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        assert resources_used_by_tree(worker.pid)[worker.pid].io_bytes >= 0
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
        worker.kill()
