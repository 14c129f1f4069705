"""@convoy_gang in flows of a user's own, run by Metaflow."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from convoy.job.events.log import read_events
from convoy.job.events.registry import FailureDetected, GenerationStarted
from convoy.job.record import job_store
from convoy.launch.plans import read_plan
from tests.flows.places import REPOSITORY, Place, own_lines, wait_for, worker_pid
from tests.flows.runs import card_text

FLOW = REPOSITORY / "tests" / "flows" / "gang_flow.py"
TINY = {
    "model": {"vocab_size": 257, "n_layers": 1, "d_model": 32, "n_heads": 2, "max_sequence_length": 32},
    "data": {"corpus": {"kind": "synthetic", "tokens": 6000, "vocab_size": 257}, "sequence_length": 16},
    "train": {"steps": 4, "param_dtype": "fp32", "matmul_peak_seconds": 0},
    "evaluation": {"sequences": 4, "sample_tokens": 0},
    "checkpoint": {"export_model": False},
}


def command(*words: str) -> list[str]:
    return [sys.executable, str(FLOW), "run", *words]


def data(place: Place, *names: str) -> dict[str, Any]:
    """Artifacts of the join step of the newest run."""
    reading = ", ".join(f"{name!r}: step.task.data.{name}" for name in names)
    found: dict[str, Any] = place.client(f"step = Flow('GangFlow').latest_run['join']\nanswer = {{{reading}}}")
    return found


def started(place: Place, job: str) -> list[tuple[int, int, int]]:
    events = read_events(job_store(str(place.root), job))
    return sorted((e.generation, e.node, e.attempt) for e in events if isinstance(e, GenerationStarted))


@pytest.mark.slow
def test_a_user_s_script_beside_parallel_survives_the_kill_of_a_worker_without_a_retry(tmp_path: Path) -> None:
    place = Place(tmp_path, {"GANG_BESIDE_PARALLEL": "1"})
    process = place.start(*command("--job", "mine", "--arguments", '["--steps", 80, "--pause", 0.05]'))
    job = place.root / "mine"
    wait_for((job / "script" / "snapshot.pt").exists)
    pid = worker_pid(job, 1, 1)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stdout + stderr
    assert data(place, "ranks", "jobs") == {"ranks": [0, 1], "jobs": ["mine", "mine"]}
    assert started(place, "mine") == [(1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0)]
    (failed,) = [e for e in read_events(job_store(str(place.root), "mine")) if isinstance(e, FailureDetected)]
    assert (failed.worker, failed.signal, failed.action) == (1, "SIGKILL", "restart")
    reading = "[c.get() for t in Flow('GangFlow').latest_run['train'] for c in get_cards(t)]"
    cards = [card_text(html) for html in place.client(f"answer = {reading}")]
    assert any("ddp_script.py" in text and "Incidents" in text for text in cards)
    assert any("Node 1 of 2" in text for text in cards)
    assert "job:mine" in place.client("answer = sorted(Flow('GangFlow').latest_run.tags)")


@pytest.mark.slow
def test_a_script_that_fails_fails_the_step_with_its_cause_node_rank_and_last_lines(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import os\nif os.environ['RANK'] == '1':\n    raise ValueError('no such thing')\n")
    place = Place(tmp_path / "place")
    done = place.run(*command("--entrypoint", str(broken), "--job", "mine"))
    assert done.returncode == 1
    assert "rank 1 on node 1 exited with code 1: ValueError: no such thing" in done.stdout
    assert "the same failure at step 0, 3 times: it is not tried again" in done.stdout
    assert "raise ValueError('no such thing')" in done.stdout
    assert "metaflow/task.py" not in done.stdout, "no traceback of ours or Metaflow's"
    assert [generation for generation, node, _ in started(place, "mine") if node == 0] == [1, 2, 3]


@pytest.mark.slow
def test_training_in_a_flow_of_one_s_own_prepares_its_data_and_a_second_gang_may_follow(tmp_path: Path) -> None:
    after = tmp_path / "after.py"
    after.write_text("import os\nprint('rank', os.environ['RANK'])\n")
    place = Place(tmp_path / "place")
    done = place.run(*command("--training", json.dumps(TINY), "--again", str(after)))
    assert done.returncode == 0, done.stdout + done.stderr
    (jobs,) = set(data(place, "jobs")["jobs"])
    first, second = jobs.split()
    assert first.startswith("GangFlow-")
    assert (first.endswith("-train"), second) == (True, f"{first}-call2")
    for job, title in ((first, "tiny"), (second, "after.py")):
        shown = place.convoy("show", job)
        assert shown.returncode == 0, shown.stderr
        assert title in shown.stdout
        assert "Finished" in shown.stdout
    planned, of_script = (read_plan(job_store(str(place.root), job)) for job in (first, second))
    assert planned is not None
    assert (planned.machines.ranks, of_script) == (2, None)
    logs = [path.read_text() for path in sorted((place.root / second / "logs" / "000001").rglob("*.log"))]
    assert logs == ["rank 0\n", "rank 1\n"]


def test_a_wrong_number_of_workers_is_told_before_a_run_exists(tmp_path: Path) -> None:
    done = Place(tmp_path, {"GANG_NPROC": "0"}).run(*command())
    assert done.returncode == 2
    (line,) = own_lines(done.stderr)
    assert line.startswith("convoy: step train: nproc_per_node = 0 of @convoy_gang: must be a whole number")
    assert "Workflow starting" not in done.stdout


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("variables", "words", "told"),
    [
        (
            {"GANG_NPROC": "4", "CUDA_VISIBLE_DEVICES": "0,1"},
            (),
            "nproc_per_node = 4: the host of all 2 nodes has 2 GPUs, and each worker needs one of its own",
        ),
        ({}, ("--entrypoint", "absent.py"), "entrypoint = absent.py: no such file, from "),
        ({}, ("--training", '{"train": {"stepz": 3}}'), "train.stepz = 3: unknown key; did you mean train.steps?"),
        (
            {"GANG_NPROC": "5"},
            ("--training", '{"train": {"global_batch": 8}}'),
            "train.global_batch = 8: must be at least the number of ranks, 10 (2 nodes",
        ),
    ],
)
def test_what_only_the_node_can_tell_is_one_message_without_a_traceback(
    variables: dict[str, str], words: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    place = Place(tmp_path, variables)
    done: subprocess.CompletedProcess[str] = place.run(*command(*words))
    assert done.returncode == 1
    assert told in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
