"""`convoy run`: a job comes to its end through preemptions; a bug, and a gang that gets no nodes, are told."""

import collections
import re
import time
from pathlib import Path

import pytest

from convoy.job.events.log import read_events
from convoy.job.events.registry import Event, GenerationStarted, NoticeReceived, StepDone, Stopping
from convoy.job.lineage import newest_commit, read_history
from convoy.report.fold import fold
from tests.flows.completed import STEPS, Completed, command, ends, preempted_in_a_row
from tests.flows.places import CONVOY, Place
from tests.flows.runs import NO_EXPORT

IDLE_FLOW = Path(__file__).with_name("idle_flow.py")

CRASHES = """
import torch

class Crashes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(256, 256)

    def forward(self, tokens):
        if self.training:
            raise ValueError("no such token")
        return self.embed(tokens)

def build():
    return Crashes()
"""


pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def events(job: Completed) -> list[Event]:
    return read_events(job.store)


def test_a_preempted_run_is_followed_by_another_until_the_job_is_done(completed: Completed) -> None:
    assert [done.returncode for done in completed.commands] == [128 + 15, 0], completed.commands
    assert len(completed.place.runs()) == 3
    runs = [e.run for e in events(completed) if isinstance(e, GenerationStarted) and e.node == 0]
    assert runs == [f"TrainFlow/{run}" for run in completed.place.runs()]
    newest = newest_commit(read_history(completed.store))
    assert newest is not None
    assert (newest.generation, newest.step) == (3, STEPS)


def test_convoy_run_says_what_happens(completed: Completed) -> None:
    told = [re.sub(r"TrainFlow/\d+", "RUN", line) for line in completed.told()]
    assert told[0] == "job taken, run 1"
    assert re.fullmatch(r"RUN was preempted at step \d+: node [01] had a notice \(.*\): .*; once more in 0 s", told[1])
    assert told[2] == "job taken, run 2"
    assert told[3] == "the run saves and ends; a second signal ends it without that"
    assert re.fullmatch(r"RUN was drained at step \d+: requested on .*", told[4])
    assert told[5:] == ["job taken: 2 runs, 1 preempted, 1 drained", "job taken, run 1", "RUN has finished"]


def test_both_saved_before_they_ended_so_that_no_step_was_done_twice(completed: Completed) -> None:
    steps = collections.Counter(e.step for e in events(completed) if isinstance(e, StepDone))
    assert steps == dict.fromkeys(range(1, STEPS + 1), 1)
    stopped = [e.reason for e in events(completed) if isinstance(e, Stopping)]
    assert stopped == ["preempted", "preempted"]
    assert [ends(completed.store, generation) for generation in (1, 2, 3)] == [
        ["preempted"] * 2,
        ["preempted"] * 2,
        ["finished"] * 2,
    ]


def test_the_notices_are_the_machine_s_and_then_a_person_s(completed: Completed) -> None:
    seen = {(e.generation, e.source) for e in events(completed) if isinstance(e, NoticeReceived)}
    assert {generation for generation, _ in seen} == {1, 2}
    assert len({source for _, source in seen}) == 2
    incidents = fold(events(completed)).incidents
    assert [(i.kind, i.then, i.steps_recomputed) for i in incidents] == [("preempted", "next run", 0)] * 2


@pytest.mark.sampled(8)  # each preemption is as those above
def test_six_preemptions_in_a_row_are_more_than_metaflow_retries_and_lose_nothing(tmp_path: Path) -> None:
    job = preempted_in_a_row(tmp_path, 6)
    assert job.commands[0].returncode == 0, job.commands
    assert job.told()[-1] == "job often: 7 runs, 6 preempted, 1 finished"
    steps = [e.step for e in events(job) if isinstance(e, StepDone)]
    assert sorted(steps) == list(range(1, STEPS + 1))
    incidents = fold(events(job)).incidents
    assert [(i.kind, i.then, i.steps_recomputed) for i in incidents] == [("preempted", "next run", 0)] * 6


def test_a_bug_is_tried_three_times_in_place_and_not_again(tmp_path: Path) -> None:
    place = Place(tmp_path, {"PYTHONPATH": str(tmp_path)})
    (tmp_path / "crashes.py").write_text(CRASHES)
    model = '"model={build: crashes:build, vocab_size: 256, max_sequence_length: 64}"'
    elsewhere = f"root={tmp_path}/elsewhere"  # which convoy run learns from the run
    done = place.run(*command("buggy", f"{model} {elsewhere} {NO_EXPORT}"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(place.runs()) == 1
    (line,) = [each for each in done.stderr.splitlines() if "another run would" in each]
    cause = r"rank [01] on node [01] exited with code 1: ValueError: no such token"
    assert re.fullmatch(rf"convoy: TrainFlow/\d+ failed at step 0: {cause}; another run would .*", line), line


@pytest.mark.sampled(2)
@pytest.mark.parametrize("after_a_gang", [False, True])
def test_a_gang_that_never_gets_its_nodes_is_given_up(after_a_gang: bool, tmp_path: Path) -> None:
    place, began = Place(tmp_path, {"IDLE_AFTER_A_GANG": "1"} if after_a_gang else {}), time.monotonic()
    minutes, retry = (
        ("0.15", ("run", "--with", "retry:times=1,minutes_between_retries=0")) if after_a_gang else ("0.05", ())
    )
    waits = ("--start-minutes", minutes, "--most-runs", "1", "--pause", "0")
    done = place.run(CONVOY, "run", IDLE_FLOW, "--job", "lonely", *waits, "--", *retry)
    assert time.monotonic() - began < 120, "nobody ended it"
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"node 0 waits in attempt {int(after_a_gang)}" in done.stdout
    (line,) = [line for line in done.stderr.splitlines() if "did not get its nodes" in line]
    assert f"node 0 did not run within {60 * float(minutes):.1f} s; the job has had 1 run" in line
    assert _commands_of(IDLE_FLOW) == []


def _commands_of(flow: Path) -> list[str]:
    """The interpreters of processes that run the flow."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if str(flow) in words and "step" in words:
            found.append(words[0])
    return found
