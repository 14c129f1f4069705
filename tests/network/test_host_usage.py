"""What a rank uses while something runs, against what it is made to use."""

import ctypes
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from convoy.gang.workers.prefork import Prefork
from convoy.network import host_usage
from convoy.network.host_usage import HostUsage, ProcessUse, convoy_processes, watch_host
from tests.gang.light import assignment
from tests.gang.tasks import wait_for

MIB = 2**20

TICK = 0.01
"""Seconds by which the kernel's two clocks of a process's CPU time may differ."""


def watched(work: Callable[[], object]) -> HostUsage:
    with watch_host() as watch:
        work()
    return watch.usage


def compute(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def use_new_memory(size: int) -> None:
    """Write to each page of a mapping of its own: an allocation may lie in memory that the heap already holds."""
    with mmap.mmap(-1, size) as memory:
        memory[:: mmap.PAGESIZE] = b"x" * (size // mmap.PAGESIZE)


def test_cpu_seconds_are_those_that_were_spent() -> None:
    own: list[tuple[float, float]] = []

    def work() -> None:
        began = time.process_time(), time.perf_counter()
        compute(0.2)
        own.append((time.process_time() - began[0], time.perf_counter() - began[1]))

    began = time.process_time(), time.perf_counter()
    usage = watched(work)
    whole = time.process_time() - began[0], time.perf_counter() - began[1]
    ((cpu, wall),) = own
    assert cpu - TICK <= usage.cpu.user_seconds + usage.cpu.system_seconds <= whole[0] + TICK
    assert wall <= usage.seconds <= whole[1]


def test_a_rank_that_waits_switches_each_time() -> None:
    usage = watched(lambda: [time.sleep(1e-4) for _ in range(100)])
    assert usage.cpu.voluntary_switches >= 100
    assert usage.switches_per_second >= 100 / usage.seconds


def test_the_peak_of_memory_is_of_this_watch_alone() -> None:
    large = watched(lambda: use_new_memory(100 * MIB))
    small = watched(lambda: use_new_memory(10 * MIB))
    assert large.peak_bytes is not None
    assert small.peak_bytes is not None
    assert 60 * MIB < large.peak_bytes - small.peak_bytes < 140 * MIB
    assert (small + large).peak_bytes == large.peak_bytes


def test_freed_blocks_between_others_are_fragmentation() -> None:
    """Blocks below the threshold of mmap, of which every other one is freed, cannot go back to the system."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    blocks = [libc.malloc(16_000) for _ in range(2000)]
    before = host_usage.heap()
    for block in blocks[::2]:
        libc.free(block)
    after = host_usage.heap()
    for block in blocks[1::2]:
        libc.free(block)
    assert before is not None
    assert after is not None
    assert after.free - before.free == pytest.approx(16e6, rel=0.05)
    assert after.fragmentation > before.fragmentation


def test_what_two_blocks_used_adds_up() -> None:
    first = watched(lambda: compute(0.02))
    first = replace(first, convoy=(ProcessUse(1, "agent", 2.0, 10, 100),))
    later = replace(
        first, peak_bytes=1, convoy=(ProcessUse(1, "agent", 3.0, 5, 90), ProcessUse(2, "writer", 1.0, 1, 7))
    )
    both = first + later
    assert both.cpu.user_seconds == 2 * first.cpu.user_seconds
    assert both.seconds == 2 * first.seconds
    assert both.peak_bytes == first.peak_bytes
    assert both.convoy == (ProcessUse(1, "agent", 5.0, 15, 90), ProcessUse(2, "writer", 1.0, 1, 7))


def test_without_an_agent_no_process_is_said_to_be_one() -> None:
    assert "agent" not in [each.role for each in watched(lambda: None).convoy]


@pytest.mark.processes
def test_the_agent_of_a_forked_rank_is_the_process_that_watches_it(tmp_path: Path) -> None:
    with Prefork({}, tmp_path / "warm.log", module="tests.gang.light") as warm:
        worker = warm.fork(assignment("sleep", tmp_path, 0), tmp_path / "0.log")
        while worker.pid is None:
            warm.wait_for_report(1.0)
        assert convoy_processes(worker.pid) == {os.getpid(): "agent"}


@pytest.mark.processes
def test_the_writer_is_a_row_of_its_own_whose_cpu_and_memory_are_counted() -> None:
    command = [sys.executable, "-P", "-m", "convoy.checkpoint.writer", str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        wait_for("the writer", lambda: convoy_processes().get(writer.pid) == "writer")
        with watch_host() as watch:
            began = host_usage.cpu_seconds_of(writer.pid)
            wait_for("its imports", lambda: host_usage.cpu_seconds_of(writer.pid) > began + 0.05)
        writer.kill()
    # Writers that other tests left waiting for work are processes of this one too.
    (use,) = [each for each in watch.usage.convoy if each.pid == writer.pid]
    assert use.role == "writer"
    assert use.cpu_seconds >= 0.05
    assert use.resident_bytes > MIB
