"""What a gang left behind is found."""

import subprocess
import time
from pathlib import Path

import pytest

from convoy.drills import leftovers
from convoy.drills.leftovers import files_left, memory_left, processes_left


def test_a_process_that_goes_on_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "GRACE_SECONDS", 0.3)
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        assert processes_left(lambda: {sleeper.pid}) == [f"process {sleeper.pid} is left: sleep 600"]
    finally:
        sleeper.kill()
        sleeper.wait()


def test_processes_that_are_just_ending_get_a_moment() -> None:
    until = time.monotonic() + 0.3
    assert processes_left(lambda: {1} if time.monotonic() < until else set()) == []


def test_only_the_gang_s_own_shared_memory_counts(tmp_path: Path) -> None:
    for name in ("convoy-17-99-abc", "convoy-18-99-abc", "another-17-99-abc"):
        (tmp_path / name).mkdir()
    assert memory_left({17, 19}, tmp_path) == [f"{tmp_path}/convoy-17-99-abc is left"]


def test_temporary_files_are_named(tmp_path: Path) -> None:
    assert files_left(tmp_path) == []
    assert files_left(tmp_path / "nowhere") == []
    (tmp_path / "convoy-x").mkdir()
    assert files_left(tmp_path) == ["temporary file convoy-x is left"]
