"""Programs that end without closing what they opened."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
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

FORKS = """
import json, os, sys
import torch
from convoy.checkpoint import Checkpoints
for line in sys.stdin:
    asked = json.loads(line)
    if os.fork() == 0:
        os.dup2(os.open(asked["errors"], os.O_WRONLY | os.O_CREAT), 2)
        sys.argv = ["a script", asked["uri"]]
        exec(asked["script"], {"__name__": "__main__"})
        sys.exit()
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
"""A program that has imported what scripts import. Each is a fork of it, which ends as an interpreter does."""


@dataclass(frozen=True)
class Ended:
    code: int
    stderr: str


@pytest.fixture(scope="module")
def programs() -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", FORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@dataclass(frozen=True)
class Scripts:
    """Run one after the other, with the URI of a store that none of the others has."""

    _programs: "subprocess.Popen[str]"
    _folder: Path

    def run(self, end: str) -> Ended:
        errors = self._folder / "errors"
        asked = {"script": SCRIPT + end, "uri": str(self._folder / "job"), "errors": str(errors)}
        assert self._programs.stdin is not None
        assert self._programs.stdout is not None
        self._programs.stdin.write(json.dumps(asked) + "\n")
        self._programs.stdin.flush()
        code = int(self._programs.stdout.readline())
        return Ended(code, errors.read_text())

    def commits(self) -> list[str]:
        return list(open_store(str(self._folder / "job")).sizes("commits/"))


@pytest.fixture
def scripts(programs: "subprocess.Popen[str]", tmp_path: Path) -> Scripts:
    return Scripts(programs, tmp_path)


@pytest.mark.parametrize("end", ENDS)
def test_a_script_that_ends_without_close_has_its_last_saves_and_is_told(scripts: Scripts, end: str) -> None:
    done = scripts.run(ENDS[end])
    assert done.code == {"ends": 0, "raises": 1}[end], done.stderr
    assert len(scripts.commits()) == 3
    assert "are still being saved: call close() before the program ends" in done.stderr


def test_a_script_that_closes_is_told_nothing(scripts: Scripts) -> None:
    assert scripts.run("ckpt.save(2, state); ckpt.close()").stderr == ""


def test_after_an_error_a_store_that_hangs_is_not_waited_for_long(scripts: Scripts) -> None:
    end = (
        "import convoy.checkpoint.api as api; api.CLOSE_SECONDS = 0.5\n"
        "os.kill(ckpt._engine.writer._writer._process.pid, signal.SIGSTOP)\n"
        "ckpt.save(2, state); raise RuntimeError('an error of the script')"
    )
    done = scripts.run(end)
    assert done.code == 1
    assert len(scripts.commits()) == 1


def test_a_fork_that_ends_waits_for_nothing(scripts: Scripts) -> None:
    end = (
        "os.kill(ckpt._engine.writer._writer._process.pid, signal.SIGSTOP)\n"
        "ckpt.save(2, state)\n"
        "if os.fork() == 0: sys.exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "os.kill(ckpt._engine.writer._writer._process.pid, signal.SIGCONT)\n"
    )
    assert scripts.run(end).code == 0
    assert len(scripts.commits()) == 2


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    ckpt = Checkpoints(str(tmp_path))
    ckpt.close()
    ckpt.close()
