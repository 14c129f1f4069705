"""Programs that end without closing what they opened."""

import subprocess
import sys
from pathlib import Path

import pytest

from convoy.checkpoint import Checkpoints
from convoy.storage import open_store

SCRIPT = """
import os, signal, sys
import torch
from convoy.checkpoint import Checkpoints
ckpt = Checkpoints(sys.argv[1], deadline_seconds=20.0)
state = {"w": torch.ones(2**20)}
ckpt.save(1, state).wait()
"""

ENDS = {
    "ends": "ckpt.save(2, state); ckpt.save(3, state)",
    "raises": "ckpt.save(2, state); ckpt.save(3, state); raise RuntimeError('an error of the script')",
}


def run(uri: Path, end: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT + end, str(uri)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


def commits(uri: Path) -> list[str]:
    return list(open_store(str(uri)).sizes("commits/"))


@pytest.mark.parametrize("end", ENDS)
def test_a_script_that_ends_without_close_has_its_last_saves_and_is_told(tmp_path: Path, end: str) -> None:
    done = run(tmp_path / "job", ENDS[end])
    assert done.returncode == {"ends": 0, "raises": 1}[end], done.stderr
    assert len(commits(tmp_path / "job")) == 3
    assert "are still being saved: call close() before the program ends" in done.stderr


def test_a_script_that_closes_is_told_nothing(tmp_path: Path) -> None:
    assert run(tmp_path / "job", "ckpt.save(2, state); ckpt.close()").stderr == ""


def test_after_an_error_a_store_that_hangs_is_not_waited_for_long(tmp_path: Path) -> None:
    end = (
        "import convoy.checkpoint.api as api; api.CLOSE_SECONDS = 0.5\n"
        "os.kill(ckpt._engine._link._writer._process.pid, signal.SIGSTOP)\n"
        "ckpt.save(2, state); raise RuntimeError('an error of the script')"
    )
    done = run(tmp_path / "job", end)
    assert done.returncode == 1
    assert len(commits(tmp_path / "job")) == 1


def test_a_fork_that_ends_waits_for_nothing(tmp_path: Path) -> None:
    end = (
        "os.kill(ckpt._engine._link._writer._process.pid, signal.SIGSTOP)\n"
        "ckpt.save(2, state)\n"
        "if os.fork() == 0: sys.exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "os.kill(ckpt._engine._link._writer._process.pid, signal.SIGCONT)\n"
    )
    assert run(tmp_path / "job", end).returncode == 0
    assert len(commits(tmp_path / "job")) == 2


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    ckpt = Checkpoints(str(tmp_path))
    ckpt.close()
    ckpt.close()
