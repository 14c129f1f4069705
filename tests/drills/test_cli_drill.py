"""`convoy drill`: what it takes, and what it tells."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from convoy.drills.faults import DRILLS
from convoy.drills.gang import newest_of_name
from tests.drills.test_drills import SMALL
from tests.gang.tasks import DEADLINE_SECONDS, alive, descendants, wait_for

pytestmark = pytest.mark.alone

CONVOY = Path(sys.executable).with_name("convoy")


def convoy(*words: str, timeout: float = 60) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(CONVOY), "drill", *words], capture_output=True, text=True, timeout=timeout)


def test_without_a_name_the_drills_are_listed() -> None:
    done = convoy()
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [drill.name for drill in DRILLS]
    assert max(map(len, lines)) <= 80


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["worker-kil"], "convoy: drill worker-kil: no such drill; did you mean worker-kill?"),
        (["none", "--all"], "convoy: drill none --all: give one of the two"),
        (["worker-kill", "--seconds", "60"], "convoy: --seconds 60: drill worker-kill ends by itself"),
        (["none", "--keep", "/"], "convoy: --keep /: already exists; choose a new folder"),
        (["worker-kill", "--set", "train.stepz=3"], "convoy: train.stepz = 3: unknown key"),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str) -> None:
    done = convoy(*words)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith(says)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_drill_tells_its_trials_as_json_and_keeps_its_jobs_where_asked(tmp_path: Path) -> None:
    words = ["--nodes", "2", "--trials", "1", "--set", SMALL, "--json", "--keep", str(tmp_path / "k")]
    done = convoy("worker-exit0", *words, timeout=240)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["drill"], told["summary"]["n"], told["summary"]["ok"]) == ("worker-exit0", 1, 1)
    assert told["trials"][0]["final_state_equal"] is True
    assert "median step" in done.stderr
    assert (tmp_path / "k" / "jobs" / "worker-exit0-0" / "JOB.json").exists()


@pytest.mark.slow
def test_a_drill_that_fails_ends_with_exit_code_1_and_says_why(tmp_path: Path) -> None:
    # With nothing to go on from there is nothing to inject the fault after.
    done = convoy("worker-kill", "--nodes", "1", "--trials", "1", "--set", f"{SMALL} train.steps=5", timeout=240)
    assert done.returncode == 1
    assert "the fault was never put in" in done.stdout
    assert "0 of 1" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_drill_that_is_ended_takes_its_gang_with_it(number: signal.Signals, tmp_path: Path) -> None:
    words = [str(CONVOY), "drill", "worker-kill", "--nodes", "2", "--keep", str(tmp_path / "k")]
    drill = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        wait_for("a worker", lambda: newest_of_name(descendants(drill.pid), "convoy rank 0"))
        below = descendants(drill.pid)
        drill.send_signal(number)
        drill.wait(DEADLINE_SECONDS)
        wait_for("the end of all", lambda: not alive(below))
    finally:
        drill.kill()
        drill.wait()
