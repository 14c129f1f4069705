"""`convoy run` from end to end, with a stand-in for the flow that does what a plan says."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

CONVOY = Path(sys.executable).with_name("convoy")
A_FLOW = Path(__file__).with_name("a_flow.py")

AT_ONCE = ("--pause", "0")

PREEMPTED = {"end": "preempted", "code": 1}
FINISHED = {"end": "finished", "step": 20}
BUG = {"end": "failed", "cause": "exited", "step": 7, "code": 1}
LOST = {"end": "failed", "cause": "node_gone", "step": 7, "code": 1}


class Outcome:
    """What `convoy run` printed of its own, and its exit code."""

    def __init__(self, done: "subprocess.CompletedProcess[str]", plan: Path) -> None:
        self.code = done.returncode
        own = [line.removeprefix("convoy: ") for line in done.stderr.splitlines() if line.startswith("convoy: ")]
        state = re.compile(r"job blue(: \w+ at step \d+|: finished\.| has not begun)")
        last = next((i for i, line in enumerate(own) if state.match(line)), len(own))
        self.lines, self.state = own[:last], own[last:]
        self.left = json.loads(plan.read_text())
        self.stderr = done.stderr


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def run(
        *turns: dict[str, Any], options: tuple[str, ...] = ("--pause", "0"), words: tuple[str, ...] = ()
    ) -> Outcome:
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps(turns))
        # The stand-in takes its plan as the first word, as Metaflow takes its own options.
        command = [CONVOY, "run", A_FLOW, "--job", "blue", *options, "--", str(plan), *words]
        done = subprocess.run(
            [str(word) for word in command],
            cwd=tmp_path,
            env={**os.environ, "CONVOY_ROOT": str(tmp_path / "jobs")},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return Outcome(done, plan)

    return run


@pytest.mark.slow
def test_a_job_is_run_to_its_end_through_more_preemptions_than_metaflow_has_retries(run: Any) -> None:
    outcome = run(*[{**PREEMPTED, "step": 3 * turn} for turn in range(1, 7)], FINISHED)
    assert (outcome.code, outcome.left) == (0, [])
    assert outcome.lines[:3] == [
        "job blue, run 1",
        "AFlow/94 was preempted at step 3: node 0 had a notice (spot): terminate; once more in 0 s",
        "job blue, run 2",
    ]
    assert outcome.lines[-2:] == ["AFlow/100 has finished", "job blue: 7 runs, 6 preempted, 1 finished"]


@pytest.mark.slow
def test_lost_nodes_and_nothing_known_at_all_are_followed_by_another_run(run: Any) -> None:
    outcome = run(LOST, LOST, {"code": 1}, LOST, {"code": -9}, FINISHED)
    assert (outcome.code, outcome.left) == (0, [])
    assert (
        outcome.lines[1]
        == "AFlow/95 failed at step 7: node 0 was lost, its agent ended without a word; once more in 0 s"
    )


def test_a_bug_that_comes_three_times_at_the_same_step_is_not_tried_again(run: Any) -> None:
    outcome = run(BUG, PREEMPTED, BUG, BUG, FINISHED)
    assert (outcome.code, outcome.left) == (1, [FINISHED])
    assert outcome.lines[-2].endswith("exited with code 1; the same failure, 3 times, is not tried again")


def test_what_is_refused_at_once_keeps_its_exit_code(run: Any) -> None:
    outcome = run({"makes_run": False, "code": 2}, FINISHED)
    assert (outcome.code, outcome.left) == (2, [FINISHED])


def test_a_job_that_has_nothing_left_to_do_makes_no_run(run: Any) -> None:
    outcome = run({"makes_run": False})
    assert (outcome.code, outcome.lines) == (0, ["job blue, run 1", "the flow has finished"])


def test_a_drained_run_is_not_followed_by_another(run: Any) -> None:
    outcome = run({"end": "drained by a person", "step": 5, "code": 1}, FINISHED)
    assert (outcome.code, outcome.left) == (3, [FINISHED])
    assert outcome.lines[-1] == "AFlow/99 was drained at step 5: requested on desk"
    (state,) = outcome.state
    show, again = outcome.stderr.splitlines()[-2:]
    assert state.startswith("job blue: preempted at step 0")
    assert show == "  show      convoy show blue"
    assert again.startswith("  continue  convoy run ")
    assert "--job blue" in again


def test_a_signal_drains_the_run_that_is_running(run: Any) -> None:
    outcome = run({"end": "waits to be drained", "step": 5, "code": 1}, FINISHED)
    assert (outcome.code, outcome.left) == (128 + 15, [FINISHED])
    assert outcome.lines[1] == "the run saves and ends; a second signal ends it without that"
    assert outcome.lines[2].startswith("AFlow/99 was drained at step 5")


def test_a_signal_ends_at_once_a_run_that_prepares_its_data(run: Any) -> None:
    began = time.monotonic()
    outcome = run({"end": "is interrupted while it prepares", "code": 1}, FINISHED)
    assert time.monotonic() - began < 50
    assert (outcome.code, outcome.left) == (128 + 15, [FINISHED])
    assert "the run saves and ends" not in outcome.stderr


def test_the_most_runs_are_kept(run: Any) -> None:
    outcome = run(PREEMPTED, PREEMPTED, FINISHED, options=(*AT_ONCE, "--most-runs", "2"))
    assert (outcome.code, outcome.left) == (1, [FINISHED])
    assert outcome.lines[-2].endswith("; the job has had 2 runs")


DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "errors.md"
NAMED = "the job is named by convoy run --job blue, before the --"


@pytest.mark.parametrize(
    ("options", "words", "line"),
    [
        (AT_ONCE, ("run", "--job", "red"), f"--job red: {NAMED}"),
        (AT_ONCE, ("run", "--tag", "job:red"), f"job:red: {NAMED}"),
        (("--job", "a/b"), (), "job = a/b: must begin with a letter or digit and hold only letters, digits, . _ and -"),
    ],
)
def test_bad_input_is_told_before_anything_runs(run: Any, options: Any, words: Any, line: str) -> None:
    outcome = run(FINISHED, options=options, words=words)
    assert (outcome.code, outcome.lines, outcome.left) == (2, [line], [FINISHED])


def test_the_line_for_a_job_that_is_named_twice_is_documented() -> None:
    assert f"`convoy: --job red: {NAMED}`" in DOCUMENT.read_text()
