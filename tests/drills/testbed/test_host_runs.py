"""Commands on several hosts end together: by themselves, with the first failure, or at the deadline."""

import os
import sys
import time

import pytest

from convoy.drills.testbed.host_runs import HostCommand, run_on_hosts

pytestmark = pytest.mark.processes

WRITES = "import os, sys; print(os.environ['RANK'] * 100_000); print('wrong', file=sys.stderr)"


def shell(script: str) -> HostCommand:
    return HostCommand([], ["sh", "-c", script], os.environ)


def test_all_that_was_written_is_returned_in_the_order_of_hosts() -> None:
    commands = [
        HostCommand(["env"], [sys.executable, "-c", WRITES], {"RANK": str(rank), "PATH": os.environ["PATH"]})
        for rank in range(3)
    ]
    runs = run_on_hosts(commands, 30)
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert [run.output for run in runs] == [str(rank) * 100_000 + "\n" for rank in range(3)]
    assert {run.errors for run in runs} == {"wrong\n"}


def test_all_others_are_killed_when_one_fails() -> None:
    began = time.monotonic()
    runs = run_on_hosts([shell("sleep 60 & sleep 60"), shell("exit 3"), shell("true; sleep 60")], 60)
    assert time.monotonic() - began < 30
    assert [(run.returncode, run.killed) for run in runs] == [(-9, True), (3, False), (-9, True)]


def test_those_that_still_run_at_the_deadline_are_killed() -> None:
    runs = run_on_hosts([shell("echo ready; sleep 60"), shell("true")], 0.5)
    assert [(run.returncode, run.killed) for run in runs] == [(-9, True), (0, False)]


def test_lines_of_the_first_are_passed_on_while_it_runs() -> None:
    said = list[tuple[str, float]]()
    script = "echo one; echo two; sleep 1.5; printf three"
    run_on_hosts([shell(script), shell("echo other")], 30, lambda line: said.append((line, time.monotonic())))
    assert [line for line, _ in said] == ["one", "two", "three"]
    assert said[2][1] - said[1][1] > 0.5
