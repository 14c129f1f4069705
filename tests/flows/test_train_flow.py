"""A run of the train flow from start to end: its exit, data, tags, cards, log and files."""

import json
import re
import shlex

import pytest

from convoy.config.run import RunConfig
from convoy.display.formatting import duration
from convoy.job.events.registry import (
    CheckpointSaved,
    Environment,
    Evaluated,
    GenerationEnded,
    GenerationStarted,
    StepDone,
    WorkerReady,
)
from convoy.job.lineage import CommitRef, counted_commits, read_history
from convoy.job.record import read_config, read_record
from convoy.launch.plans import plan_safely, read_plan
from convoy.report.analysis.prediction_error import comparisons
from convoy.report.fold import fold
from tests.flows.places import FLOW, flow_command, own_lines
from tests.flows.runs import Run
from tests.report.analysis.test_goodput import assert_as_naive

pytestmark = pytest.mark.slow


def test_a_run_ends_with_exit_code_0_and_says_where_its_results_are(smoke: Run) -> None:
    assert smoke.done.returncode == 0
    last = [re.sub(r"^.*?\] ", "", line) for line in smoke.done.stdout.splitlines() if "/end/" in line]
    assert f"job {smoke.job}: finished at step 20" in last
    assert f"checkpoint {smoke.folder}/commits/000001-000000020.json" in last
    assert f"model {smoke.folder}/model/000001-000000020" in last
    _, *words = flow_command("run", overrides="train.matmul_peak_seconds=0.1")
    assert own_lines(smoke.done.stderr) == [
        f"convoy: job {smoke.job}: finished at step 20. The newest checkpoint holds step 20.",
        f"  card      python {FLOW} card view {smoke.id}/join/4",
        f"  show      convoy show {smoke.job}",
        f"  continue  {shlex.join(['python', *words])} --job {smoke.job}  # with more train.steps",
    ]
    quiet = ("no notice source", "convoy plan: ")  # which nothing on a CPU of one's own has
    assert not [line for line in smoke.done.stdout.splitlines() if any(words in line for words in quiet)]


def test_the_run_s_data_and_tags_give_job_config_checkpoint_model_metrics_and_incidents(smoke: Run) -> None:
    names = ("job", "checkpoint_uri", "model_uri", "metrics", "incidents", "config")
    reading = ", ".join(f"{name!r}: run.data.{name}" for name in names)
    data, tags = smoke.place.client(f"run = Run({smoke.pathspec!r})\nanswer = [{{{reading}}}, sorted(run.tags)]")
    assert [tag for tag in tags if tag.startswith("job:")] == [f"job:{smoke.job}"]
    assert data["job"] == f"TrainFlow-{smoke.id}"
    assert data["checkpoint_uri"] == f"{smoke.folder}/commits/000001-000000020.json"
    assert data["model_uri"] == f"{smoke.folder}/model/000001-000000020"
    assert data["config"]["root"] == str(smoke.place.root)
    assert data["config"]["train"]["steps"] == 20
    metrics = data["metrics"]
    assert (metrics["outcome"], metrics["step"], metrics["skipped_steps"]) == ("finished", 20, 0)
    assert metrics["loss"] < metrics["initial_loss"]
    assert metrics["tokens_per_second"]["median"] > 0
    assert 0 < metrics["goodput"] < 1
    assert data["incidents"] == []


def test_the_plan_is_plain_data_that_lies_below_the_job(smoke: Run) -> None:
    kept, data = read_plan(smoke.store), smoke.data("plan")["plan"]
    assert kept is not None
    assert data == kept.model_dump(mode="json")
    assert (kept.machines.ranks, kept.model) == (2, "smoke")
    assert kept.memory is not None
    assert kept.memory.fits
    assert {e.training for e in smoke.events() if isinstance(e, GenerationStarted)} == {kept.training}


def test_the_time_of_a_step_is_planned_once_the_machine_is_measured_and_from_nothing_else(smoke: Run) -> None:
    kept = read_plan(smoke.store)
    assert kept is not None
    assert kept.step is not None
    told = [e.machine for e in smoke.events() if isinstance(e, Environment) and e.machine is not None]
    assert len(told) == 2
    assert kept.measured == min(told, key=lambda machine: machine.matmul_flops)
    config = RunConfig.model_validate(smoke.data("config")["config"])
    assert plan_safely(config, kept.measured).step == kept.step


def test_the_final_card_tells_the_outcome_and_has_the_plan_next_to_what_was_measured(smoke: Run) -> None:
    ((_, text),) = smoke.cards("join")
    for words in ("Finished", "parameters", "2 ranks on 2 nodes", "Validation loss", "commits/000001-000000020.json"):
        assert words in text, words
    shown = json.dumps(json.loads(text), ensure_ascii=False)
    section = shown[shown.index("Predicted and measured") :]
    assert "no step's time is in it" in section
    plan, report = read_plan(smoke.store), fold(smoke.events(), 20)
    assert plan is not None
    for each in comparisons(plan, report):
        assert each.measured is not None, each.what
        if each.unit == "seconds" and each.pct_error is not None:
            for cell in (each.what, duration(each.predicted), duration(each.measured), f"{each.pct_error:+z.1f} %"):
                assert cell in section, (each, cell)


def test_node_0_has_the_live_card_and_the_other_nodes_say_where_it_is(smoke: Run) -> None:
    cards = dict(smoke.cards("train"))
    (control,) = [task for task in cards if "node" not in task]
    (other,) = [task for task in cards if task != control]
    assert "Step breakdown" in cards[control] or "Loss" in cards[control]
    assert "Predicted and measured" in cards[control]
    assert "Node 1 of 2" in cards[other]
    assert f"{smoke.pathspec}/train/{control}" in cards[other]
    assert "Loss" not in cards[other]


def test_the_event_log_tells_the_whole_run(smoke: Run) -> None:
    events = smoke.events()
    started = [e for e in events if isinstance(e, GenerationStarted)]
    assert {(e.node, e.run, e.attempt, e.world_size) for e in started} == {(n, smoke.pathspec, 0, 2) for n in (0, 1)}
    assert [e.step for e in events if isinstance(e, StepDone)] == list(range(1, 21))
    assert [e.step for e in events if isinstance(e, Evaluated)] == [0, 10, 20]
    assert [e.step for e in events if isinstance(e, CheckpointSaved)] == [10, 20]
    ended = [e for e in events if isinstance(e, GenerationEnded)]
    assert {(e.node, e.outcome) for e in ended} == {(0, "finished"), (1, "finished")}
    phases = ["imported", "connected", "built", "restored", "first_step"]
    for rank in (0, 1):
        assert [e.phase for e in events if isinstance(e, WorkerReady) and e.rank == rank] == phases
    assert_as_naive(events, seconds=0.01)


def test_the_job_s_files_are_where_the_design_puts_them(smoke: Run) -> None:
    record, history = read_record(smoke.store), read_history(smoke.store)
    assert record is not None
    assert (record.job, record.seed, record.global_batch, record.steps) == (smoke.job, 0, 8, 20)
    assert counted_commits(history) == [CommitRef(generation=1, step=10), CommitRef(generation=1, step=20)]
    formed = history.generations[1]
    assert (formed.parent, formed.nodes, formed.world_size) == (None, 2, 2)
    assert formed.formation.startswith(f"{smoke.id}/train/")
    assert read_config(smoke.store, formed.config_hash)["train"]["steps"] == 20
    names = set(smoke.store.sizes(""))
    assert "events/000001/00001/rank00001.jsonl" in names
    assert "LIVE.json" not in names
    assert any(name.startswith("shards/000001-000000020/") for name in names)
    model = smoke.folder / "model" / "000001-000000020"
    assert json.loads((model / "config.json").read_text())["model_type"] == "gpt2"
    assert (model / "model.safetensors").stat().st_size > 0
