"""The reader of NCCL's log is fast, and its memory does not grow with the log."""

import time
import tracemalloc
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


def test_a_hundred_megabytes_take_ten_seconds_at_most(tmp_path: Path) -> None:
    """A tenth of them is timed, by the time of this process."""
    (tmp_path / "log").write_bytes(big_log(10))
    began = time.process_time()
    log = read_files([tmp_path / "log"])
    assert time.process_time() - began < 1.0
    assert judge(log).verdict == "rdma+gdr"


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
