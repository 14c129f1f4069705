"""What is read from /proc/<pid>/stat."""

import os
import signal
import subprocess
import sys

import pytest

from convoy.gang.workers.process_state import Stat, parse_stat, read_stat, state_of
from tests.gang.tasks import wait_for

REST = "1 2 2 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 {threads} 0 100 1000 10"


@pytest.mark.parametrize(
    ("letter", "threads", "state"),
    [
        ("R", 1, "running"),
        ("S", 9, "running"),
        ("I", 1, "running"),
        ("t", 1, "running"),
        ("T", 1, "stopped"),
        ("D", 3, "uninterruptible"),
        ("Z", 1, "gone"),
        ("Z", 2, "running"),
        ("X", 0, "gone"),
    ],
)
@pytest.mark.parametrize("name", ["python", "a b", "Z) T 9 (", ") D 1 2 3"])
def test_a_line_is_parsed_whatever_the_name(name: str, letter: str, threads: int, state: str) -> None:
    text = f"123 ({name}) {letter} {REST.format(threads=threads)}\n"
    assert parse_stat(text) == Stat(state, 1)  # type: ignore[arg-type]


def test_a_process_is_followed_to_its_end() -> None:
    process = subprocess.Popen(["sleep", "600"])
    # Not at once: its program is read from the disk first.
    wait_for("its running", lambda: read_stat(process.pid) == Stat("running", os.getpid()))
    process.send_signal(signal.SIGSTOP)
    wait_for("the stop", lambda: state_of(process.pid) == "stopped")
    process.send_signal(signal.SIGCONT)
    wait_for("its going on", lambda: state_of(process.pid) == "running")
    process.kill()
    wait_for("its end", lambda: state_of(process.pid) == "gone")
    process.wait()
    assert read_stat(process.pid) is None


def test_a_process_lives_on_without_its_first_thread() -> None:
    script = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    try:
        wait_for("the end of its first thread", lambda: _letter(process.pid) == "Z")
        assert state_of(process.pid) == "running"
    finally:
        process.kill()
        process.wait()


def _letter(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
