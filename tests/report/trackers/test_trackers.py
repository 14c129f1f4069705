"""Other tools read the same log: what they show is read back by their own readers."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from convoy.config.errors import ConfigError
from convoy.config.trackers import TrackerConfig
from convoy.job.events.registry import Event, GenerationEnded, StepDone
from convoy.job.lineage import Generation
from convoy.report.trackers.points import LivingBranch, flatten, points_of, take_unsent
from convoy.report.trackers.sender import Sender, replay
from convoy.report.trackers.tracker import TrackedRun, Tracker, tracker_for
from convoy.storage.posix import PosixStore
from tests.report.synthetic import CONFIG, SAMPLE, Log, resumed_job

RUN = TrackedRun(
    job="blue", uri="/jobs/blue", run="TrainFlow/7", card="convoy show blue", started=1.8e9, parameters=CONFIG
)


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(tmp_path / "blue")


def scalars(events: list[Event]) -> list[Any]:
    return take_unsent(points_of(LivingBranch().add(events, final=True)), {})


def interrupted_job() -> Log:
    """Twelve steps; then a generation in place that resumed from step 8 and repeats four of them."""
    log = Log()
    log.form(1)
    for step in range(1, 13):
        log.step(step)
    log.form(2, parent=8)
    for step in range(9, 16):
        log.wait(1)
        log.add(StepDone(step=step, loss=100 + step, grad_norm=1, lr=1, tokens=1, seconds=1), rank=0)
    return log


def interrupted_log() -> tuple[list[Event], list[Event]]:
    """The events of its two generations."""
    events = interrupted_job().events
    return [e for e in events if e.generation == 1], [e for e in events if e.generation == 2]


def test_points_are_those_of_the_living_branch_and_finite() -> None:
    log = Log()
    log.start()
    log.add(StepDone(step=1, loss=math.nan, grad_norm=2.0, lr=1e-3, tokens=8, seconds=0.5), rank=0)
    assert {point.name for point in scalars(log.events)} == {
        "train/grad_norm", "train/learning_rate", "train/step_seconds", "train/tokens_per_second",
    }  # fmt: skip
    losses = [point.step for point in scalars(resumed_job()) if point.name == "train/loss"]
    assert losses == list(range(1, 171))


def test_steps_wait_until_the_log_says_from_where_their_generation_resumed() -> None:
    first, second = interrupted_log()
    branch = LivingBranch()
    assert branch.add(first) == first
    started, *steps = second
    assert branch.add(steps) == []
    assert branch.resumptions == {}
    assert branch.add([started]) == second
    assert branch.resumptions == {2: 8}


def tensorboard_losses(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    board.Reload()
    return [(scalar.step, scalar.value) for scalar in board.Scalars("train/loss")]


def test_tensorboard_reads_what_was_written(tmp_path: Path, store: PosixStore) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events, folder = resumed_job(), tmp_path / "board"
    n = replay(tracker_for(TrackerConfig(tensorboard=str(folder))), RUN, events, store, "t")
    board = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    board.Reload()
    tags = board.Tags()["scalars"]
    assert sum(len(board.Scalars(tag)) for tag in tags) == n
    loss = board.Scalars("train/loss")
    assert [s.step for s in loss] == list(range(1, 171))
    first = next(e for e in events if isinstance(e, StepDone))
    assert loss[0].value == pytest.approx(first.loss, rel=1e-6)
    assert loss[0].wall_time == pytest.approx(first.t)
    assert [s.step for s in board.Scalars("validation/bits_per_byte")] == [0, 85, 170]
    (note,) = board.Tensors("convoy/run")
    assert b"convoy.card: convoy show blue" in note.tensor_proto.string_val[0]
    assert replay(tracker_for(TrackerConfig(tensorboard=str(folder))), RUN, events, store, "t") == 0


def test_tensorboard_shows_the_repeated_steps_of_the_generation_that_counts(tmp_path: Path, store: PosixStore) -> None:
    first, second = interrupted_log()
    config = TrackerConfig(tensorboard=str(tmp_path / "board"))
    before = Sender(tracker_for(config), RUN, store, "t")
    before.send(first)  # and is killed
    after = Sender(tracker_for(config), RUN, store, "t")
    after.send([*first, *second[:3]])
    after.send(second[3:], final=True)
    after.close("finished")
    assert tensorboard_losses(tmp_path / "board") == [(s, 1 if s <= 8 else 100 + s) for s in range(1, 16)]


def test_tensorboard_that_missed_several_restarts_gets_every_step_once_and_nothing_when_it_is_opened_again(
    tmp_path: Path, store: PosixStore
) -> None:
    log = interrupted_job()
    log.form(3, parent=10)
    for step in range(11, 14):
        log.step(step)
    config = TrackerConfig(tensorboard=str(tmp_path / "board"))
    sent = [replay(tracker_for(config), RUN, log.events, store, "t") for _ in range(3)]
    assert (sent[0] > 0, sent[1:]) == (True, [0, 0])
    assert [step for step, _ in tensorboard_losses(tmp_path / "board")] == list(range(1, 14))


@pytest.fixture
def mlflow_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of a tracking store in a folder: the only kind that mlflow-skinny has without a server."""
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())


def mlflow_tracker(client: Any, experiment: str = "stdlib") -> Tracker:
    return tracker_for(TrackerConfig(mlflow=client.tracking_uri), experiment)


def the_runs(client: Any) -> list[Any]:
    experiment = client.get_experiment_by_name("stdlib")
    return list(client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"]))


def test_mlflow_holds_the_metrics_parameters_times_tags_and_texts(mlflow_client: Any, store: PosixStore) -> None:
    events, client = resumed_job(), mlflow_client
    replay(mlflow_tracker(client), RUN.model_copy(update={"started": events[0].t}), events, store, "m")
    (run,) = the_runs(client)
    run_id = run.info.run_id
    assert (run.info.status, run.info.run_name) == ("FINISHED", "blue")
    assert run.info.start_time == int(1000 * events[0].t)
    assert run.data.params["train.global_batch"] == "8"
    assert run.data.tags["convoy.job"] == "blue"
    assert (run.data.tags["convoy.run"], run.data.tags["convoy.card"]) == ("TrainFlow/7", "convoy show blue")
    for name in {point.name for point in scalars(events)}:
        logged = [(p.step, p.value) for p in scalars(events) if p.name == name]
        assert [(m.step, m.value) for m in client.get_metric_history(run_id, name)] == logged
    (text,) = client.list_artifacts(run_id, "samples")
    assert Path(client.download_artifacts(run_id, text.path)).read_text() == f"def main({SAMPLE}"


def test_an_attempt_continues_the_mlflow_run_and_sends_no_step_twice(mlflow_client: Any, store: PosixStore) -> None:
    first, second = interrupted_log()
    before = Sender(mlflow_tracker(mlflow_client), RUN, store, "m")
    before.send(first[:6])  # and is killed
    after = Sender(mlflow_tracker(mlflow_client), RUN.model_copy(update={"run": "TrainFlow/8"}), store, "m")
    after.send(first)
    after.send(second, final=True)
    after.close("failed")
    (run,) = the_runs(mlflow_client)
    history = mlflow_client.get_metric_history(run.info.run_id, "train/loss")
    assert [(m.step, m.value) for m in history] == [(s, 1 if s <= 12 else 100 + s) for s in range(1, 16)]
    assert (run.info.status, run.data.tags["convoy.run"]) == ("FAILED", "TrainFlow/8")


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [(["failed", "finished"], "FINISHED"), (["failed"], "FAILED"), (["failed", None], "KILLED"),
     (["preempted"], "KILLED")],
)  # fmt: skip
def test_a_replayed_run_ends_as_the_newest_generation_did(
    mlflow_client: Any, store: PosixStore, outcomes: list[str | None], status: str
) -> None:
    log = Log()
    for generation, outcome in enumerate(outcomes, 1):
        log.form(generation)
        log.step(generation)
        if outcome is not None:
            log.add(GenerationEnded.model_validate({"outcome": outcome, "step": generation}), node=0)
    replay(mlflow_tracker(mlflow_client), RUN, log.events, store, "m")
    assert the_runs(mlflow_client)[0].info.status == status


def test_a_rewind_begins_a_new_mlflow_run_that_holds_the_living_branch_alone(
    mlflow_client: Any, store: PosixStore
) -> None:
    log = Log()
    log.form(1)
    for step in range(1, 11):
        log.step(step)
    replay(mlflow_tracker(mlflow_client), RUN, log.events, store, "m")
    rewound = Generation(
        generation=2, parent=None, formation="rewind", nodes=0, world_size=0, config_hash="", created=log.t
    )
    store.create(rewound.name, rewound.model_dump_json().encode())
    log.form(3, parent=4)
    log.events[-1] = log.events[-1].model_copy(update={"parent_generation": 1})
    for step in range(5, 7):
        log.add(StepDone(step=step, loss=7, grad_norm=1, lr=1, tokens=1, seconds=1), rank=0)
    replay(mlflow_tracker(mlflow_client), RUN, log.events, store, "m")
    losses = {
        run.info.run_name: [m.value for m in mlflow_client.get_metric_history(run.info.run_id, "train/loss")]
        for run in the_runs(mlflow_client)
    }
    assert losses == {"blue": [1] * 10, "blue (rewound, generation 2)": [1, 1, 1, 1, 7, 7]}


def wandb_history(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows and run of all transaction logs below a folder, by wandb's own reader."""
    rows, run = [], {}
    for file in sorted(folder.rglob("*.wandb")):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
            record = json.loads(line)
            if record["type"] == "history":
                rows.append(record["history"]["item"])
            elif record["type"] == "run":
                run = record["run"]
    return rows, run


@pytest.mark.processes
def test_wandb_offline_holds_each_step_once_over_two_processes(
    tmp_path: Path, store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from convoy.report.trackers.process import TrackerProcess

    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    first, second = interrupted_log()
    config = TrackerConfig(wandb="stdlib")
    for events in (first, [*first, *second]):
        process = TrackerProcess(config, lambda why: None)
        try:
            sender = Sender(process, RUN, store, "w")
            sender.send(events, final=True)
            sender.close("finished")
        finally:
            process.kill()
    rows, run = wandb_history(tmp_path)
    losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert sorted(losses) == [(s, 1 if s <= 12 else 100 + s) for s in range(1, 16)]
    assert {row["_timestamp"] for row in rows} <= {e.t for e in [*first, *second]}
    assert (run["project"], run["display_name"], run["config"]["update"]["convoy"]["card"]) == (
        "stdlib", "blue", "convoy show blue",
    )  # fmt: skip
    assert set(run["tags"]) == {"job:blue", "run:TrainFlow/7"}


def test_a_tracking_uri_that_mlflow_refuses_is_bad_input(store: PosixStore) -> None:
    with pytest.raises(ConfigError, match=r"^mlflow = gopher://here: "):
        replay(tracker_for(TrackerConfig(mlflow="gopher://here")), RUN, [], store, "m")


@pytest.mark.parametrize("package", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_named_with_what_to_install(
    package: str, tmp_path: Path, store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"pip install 'metaflow-convoy\[{package}\]'"):
        replay(tracker_for(TrackerConfig.model_validate({package: str(tmp_path / "x")})), RUN, [], store, "m")


def test_nested_parameters_become_dotted_names() -> None:
    assert dict(flatten({"a": {"b": 1, "c": {"d": None}}, "e": [2]})) == {"a.b": 1, "a.c.d": None, "e": [2]}


def test_no_page_terminal_or_reader_imports_torch_or_metaflow(tmp_path: Path) -> None:
    code = (
        "import sys, convoy.report.pages.train, convoy.display.terminal, convoy.report.train_report;"
        "import convoy.report.trackers.live, convoy.report.notifications.notifier;"
        "from convoy.report.trackers.tensorboard import TensorBoardTracker as T;"
        "from convoy.report.trackers.tracker import TrackedRun;"
        f"t = T({str(tmp_path)!r}); t.open(TrackedRun(job='j', uri='u')); t.close('finished', 0);"
        "sys.exit(bool({'torch', 'metaflow', 'tensorflow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
