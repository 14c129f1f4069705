"""What is read from /proc/<pid>/stat."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.gang.workers import processes
from convoy.gang.workers.processes import (
    TAG,
    Stat,
    descendants,
    environment_of,
    kill_below,
    kill_tagged,
    new_tag,
    parents_by_pid,
    parse_stat,
    pids_with_tag,
    read_stat,
    state_of,
)
from tests.gang.tasks import alive, wait_for

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
        wait_for("the end of its first thread", lambda: ") Z " in Path(f"/proc/{process.pid}/stat").read_text())
        assert state_of(process.pid) == "running"
    finally:
        process.kill()
        process.wait()


# Adopts orphans, says when what it was asked to run is there, and reaps.
ADOPTER = """
import os, subprocess, sys, time
from convoy.gang.workers.processes import adopt_orphans
adopt_orphans()
subprocess.run(["sh", "-c", sys.argv[1]])
print("here", flush=True)
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.01)
"""


@pytest.fixture
def adopters() -> Iterator[list["subprocess.Popen[str]"]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        kill_below(process.pid)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def adopter(started: list["subprocess.Popen[str]"], script: str) -> int:
    process = subprocess.Popen([sys.executable, "-c", ADOPTER, script], stdout=subprocess.PIPE, text=True)
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process.pid


@st.composite
def forests(draw: st.DrawFn) -> dict[int, int]:
    """Each process's parent was there before it; some parents are not in the list."""
    sizes = draw(st.integers(1, 30))
    return {pid: draw(st.integers(0, pid - 1)) for pid in range(1, sizes + 1)}


@given(forests(), st.integers(0, 30))
def test_descendants_are_those_whose_line_of_parents_meets_the_root(parents: dict[int, int], root: int) -> None:
    def line(pid: int) -> Iterator[int]:
        while pid in parents:
            pid = parents[pid]
            yield pid

    assert descendants(parents, root) == {pid for pid in parents if root in line(pid)}


def test_a_list_that_changed_while_it_was_read_does_not_go_round_for_ever() -> None:
    assert descendants({1: 2, 2: 3, 3: 1}, 1) == {2, 3}
    assert descendants({1: 1}, 1) == set()


@pytest.mark.parametrize(
    "script",
    [
        "sleep 600 &",
        "setsid sleep 600 &",
        "(setsid sleep 600 &) &",
        "env -i setsid sh -c 'sleep 600 & sleep 600' &",
        "trap '' TERM HUP; sleep 600 & kill -STOP $!",
    ],
)
def test_nothing_is_left_below_one_that_adopts_orphans(script: str, adopters: list["subprocess.Popen[str]"]) -> None:
    other, root = adopter(adopters, "sleep 600 &"), adopter(adopters, script)
    below = wait_for("what it started", lambda: descendants(parents_by_pid(), root))

    assert kill_below(root) == set()

    assert alive(below) == set()
    assert descendants(parents_by_pid(), root) == set()
    assert len(alive({root, other}) | descendants(parents_by_pid(), other)) == 3


def test_one_that_a_look_misses_is_found_by_the_next(
    adopters: list["subprocess.Popen[str]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = adopter(adopters, "sleep 600 &")
    below = wait_for("what it started", lambda: descendants(parents_by_pid(), root))
    looks = iter([{1: 0}])
    monkeypatch.setattr(processes, "parents_by_pid", lambda: next(looks, None) or parents_by_pid())

    assert kill_below(root) == set()

    assert alive(below) == set()


def test_what_forks_while_it_is_killed_is_killed_too(adopters: list["subprocess.Popen[str]"]) -> None:
    root = adopter(adopters, "for i in 1 2 3; do (while true; do sleep 0.01 & sleep 600 & sleep 0.005; done) & done")
    wait_for("several", lambda: len(descendants(parents_by_pid(), root)) > 8)

    assert kill_below(root) == set()

    time.sleep(0.05)
    assert descendants(parents_by_pid(), root) == set()


def test_what_inherited_a_marker_is_found_wherever_it_is() -> None:
    marker = new_tag()
    done = subprocess.run(
        ["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"],
        env={**os.environ, TAG: marker},
        capture_output=True,
        text=True,
        check=True,
    )
    orphan = int(done.stdout)
    wait_for("the orphan", lambda: pids_with_tag(marker) == {orphan})
    assert pids_with_tag(new_tag()) == set()

    assert kill_tagged(marker) == set()

    assert alive({orphan}) == set()


def test_this_process_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = (entry.decode().partition("=") for entry in environment_of(os.getpid()))
    name, value = next((name, value) for name, _, value in entries if value)
    monkeypatch.setattr("convoy.gang.workers.processes.TAG", name)
    assert os.getpid() not in pids_with_tag(value)


def test_zombies_do_not_live() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process.pid not in parents_by_pid()
    assert process.wait() == 0
