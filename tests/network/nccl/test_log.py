"""The reader of NCCL's log takes hardly longer than any reading of text, and its memory does not grow with the log."""

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from convoy.config.errors import ConfigError
from convoy.network.nccl.log import read_files, read_lines
from convoy.network.nccl.verdict import judge
from tests.network.nccl.written import Job

MEGABYTES = 10**6


def big_log(megabytes: int) -> bytes:
    """A log of 64 ranks, most of it channels, as of a run that forms its communicators many times."""
    once = "".join(f"2025-03-03T10:11:12.{rank:06d}Z {line}\n" for rank in range(64) for line in
                   Job(ranks=64, per_host=8).communicator_lines(rank))  # fmt: skip
    start = "".join(f"{line}\n" for line in Job(ranks=64, per_host=8).lines())
    return (start + once * (megabytes * MEGABYTES // len(once) + 1)).encode()


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of this process; the less of two tries."""
    tries = []
    for _ in range(2):
        began = time.process_time()
        work()
        tries.append(time.process_time() - began)
    return min(tries)


def test_reading_takes_few_times_as_long_as_splitting_the_lines_into_words(tmp_path: Path) -> None:
    """It takes 1.5 times as long: 100 MB in 2.5 s, where splitting takes 1.9 s."""
    log, text = tmp_path / "log", big_log(5)
    log.write_bytes(text)
    splitting = cpu_seconds(lambda: [line.decode().split() for line in text.splitlines()])
    assert cpu_seconds(lambda: read_files([log])) < 4 * splitting
    assert judge(read_files([log])).verdict == "rdma+gdr"


def test_memory_does_not_grow_with_the_log() -> None:
    lines = big_log(0).splitlines(keepends=True)
    peaks = []
    for times in (1, 6):
        tracemalloc.start()
        read_lines(line for _ in range(times) for line in lines)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


@pytest.mark.parametrize("content", [b"", b"epoch 1 loss 3.2\n", bytes(range(256)) * 1000])
def test_a_file_that_is_no_log_of_nccl_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(ConfigError, match="other: has no line of NCCL"):
        read_files([tmp_path / "other"])


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"FILE = .*: No such file"):
        read_files([tmp_path / "gone"])
