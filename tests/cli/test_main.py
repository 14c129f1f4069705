"""The `convoy` command on a job that a real run left."""

import json
import math
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from mypy_boto3_s3 import S3Client

from convoy.cli.main import COMMANDS, main
from convoy.cli.plan import COMMANDS as PLAN_COMMANDS
from convoy.cli.plan import plan
from convoy.config.checkpoint import StoreConfig
from convoy.config.loader import resolve
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import StepDone
from convoy.job.generations import form_generation
from convoy.job.heartbeat import LiveMarker
from convoy.job.lineage import CommitRef, newest_commit, read_history
from convoy.job.record import ensure_record, job_store, keep_config
from convoy.storage import open_store
from tests.cli import assert_refused, convoy
from tests.conftest import S3Server
from tests.flows.places import CONVOY
from tests.flows.runs import Run, smoke_run
from tests.model.models import theirs
from tests.nobody import as_nobody


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The finished run that the flow's tests look at too."""
    return smoke_run(tmp_path_factory.getbasetemp() / "smoke")


@pytest.fixture
def own(trained: Run, tmp_path: Path) -> str:
    """A root with a copy of that run's job, to be changed."""
    return str(trained.copied(tmp_path / "own").root)


def test_a_summary_in_the_list_of_commands_is_how_the_command_s_own_help_begins() -> None:
    for group, commands in ((main, COMMANDS), (plan, PLAN_COMMANDS)):
        for name, lazy in commands.items():
            command = group.get_command(click.Context(group), name)
            assert command is not None
            words = " ".join((command.help or "").split())
            assert words.startswith(lazy.summary.removesuffix(".")), name


def test_the_command_is_installed_and_tells_its_version() -> None:
    done = subprocess.run([CONVOY, "--version"], capture_output=True, text=True)
    assert (done.returncode, "convoy, version" in done.stdout) == (0, True)


def test_show_sums_a_job_up(trained: Run) -> None:
    done = convoy("show", trained.job, "--root", trained.place.root)
    assert done.exit_code == 0
    for words in ("Finished", "2 ranks on 2 nodes", "Validation loss", str(trained.folder)):
        assert _unspaced(words) in _unspaced(done.stdout), words


def test_show_json_is_strict_json_even_where_a_loss_was_not_finite(trained: Run, own: str) -> None:
    writer = EventWriter(job_store(own, trained.job), 1, 0, 0)
    writer.append(StepDone(step=20, loss=math.nan, grad_norm=math.inf, lr=0.1, tokens=1, seconds=1, skipped=True))
    writer.close()
    done = convoy("show", trained.job, "--root", own, "--json")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    report = json.loads(done.stdout, parse_constant=refuse)
    assert (report["step"], report["outcome"]["state"], len(report["steps"])) == (20, "finished", 21)
    assert report["steps"][-1]["loss"] == "NaN"


def test_the_root_is_found_as_the_flow_finds_it(trained: Run) -> None:
    done = trained.place.convoy("show", trained.job, "--json")
    assert (done.returncode, json.loads(done.stdout)["step"]) == (0, 20)


def test_tail_prints_every_step_and_ends_with_the_job(trained: Run) -> None:
    done = convoy("tail", trained.job, "--root", trained.place.root)
    assert done.exit_code == 0
    assert sum("  step " in line for line in done.stdout.splitlines()) == 20
    assert "finished" in done.stdout.splitlines()[-1]


def test_tail_without_follow_prints_what_there_is_of_a_live_job(trained: Run, own: str) -> None:
    store = job_store(own, trained.job)
    (Path(store.uri) / "events" / "000001" / "00000" / "agent.jsonl").unlink()
    with LiveMarker(store, "blue", "TrainFlow/1"):
        done = convoy("tail", trained.job, "--root", own, "--no-follow")
    assert (done.exit_code, "step 20" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    "command", [("show",), ("tail",), ("export", "--to", "hf"), ("rewind", "--to", "1"), ("replay",)]
)
def test_an_unknown_job_is_told_with_the_nearest_known_one(
    trained: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    name, *options = command
    folder = [str(tmp_path / "out")] if name == "export" else []
    options += ["--tensorboard", str(tmp_path / "log")] if name == "replay" else []
    root, unknown = trained.place.root, trained.job[:-1]
    line = f"job = {unknown}: no such job under {root}; did you mean {trained.job}?"
    assert_refused(line, name, unknown, *folder, *options, "--root", root)


def test_a_job_that_cannot_be_there_is_refused_without_a_suggestion(tmp_path: Path) -> None:
    assert_refused(f"job = a: no such job under {tmp_path}", "show", "a", "--root", tmp_path)
    assert convoy("show", "../a", "--root", tmp_path).stderr.startswith("convoy: job = ../a: must begin with")


def test_a_store_out_of_reach_is_one_line_and_exit_code_1(s3_uri: str, s3_server: S3Server) -> None:
    s3_server.stop()
    done = convoy("show", "a", "--root", s3_uri)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"convoy: {s3_uri}/a/JOB.json: ")


def test_a_job_that_may_not_be_read_is_one_line_and_exit_code_1(trained: Run, own: str) -> None:
    (Path(own) / trained.job / "JOB.json").chmod(0)

    def show() -> str:
        done = convoy("show", trained.job, "--root", own)
        return f"{done.exit_code} {done.stderr}"

    (line,) = as_nobody(Path(own), show).splitlines()
    assert line.startswith("1 convoy: ")
    assert "Permission" in line


def test_an_exported_model_loads_in_transformers_and_generates(trained: Run, tmp_path: Path) -> None:
    done = convoy("export", trained.job, "--to", "hf", tmp_path / "hf", "--root", trained.place.root)
    assert (done.exit_code, done.stdout) == (0, f"step 20 of generation 1 is in {tmp_path}/hf (hf)\n")
    import torch

    prompt = torch.tensor([[1, 2, 3]])
    ids = theirs(tmp_path / "hf").generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert ids.shape == (1, 11)


def test_export_to_a_folder_that_holds_something_is_refused(trained: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep me")
    line = f"folder = {tmp_path}: must be empty or absent"
    assert_refused(line, "export", trained.job, "--to", "hf", tmp_path, "--root", trained.place.root)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_export_of_a_damaged_checkpoint_is_one_line_and_exit_code_1(trained: Run, own: str, tmp_path: Path) -> None:
    shutil.rmtree(Path(own) / trained.job / "shards" / "000001-000000020")
    done = convoy("export", trained.job, "--to", "hf", tmp_path / "hf", "--root", own)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert "000001-000000020" in line


UNTIL_THEN = "until its next run, `convoy show` and `convoy list` describe the job as it was before\n"


def test_rewind_makes_an_earlier_commit_the_newest(trained: Run, own: str) -> None:
    before_the_first = convoy("rewind", trained.job, "--to", 3, "--root", own)
    assert (before_the_first.exit_code, "commits: 10, 20" in before_the_first.stderr) == (2, True)
    done = convoy("rewind", trained.job, "--to", 15, "--root", own)
    assert (done.exit_code, done.stdout) == (
        0,
        f"job {trained.job} continues from step 10 of generation 1\n{UNTIL_THEN}",
    )
    assert newest_commit(read_history(job_store(own, trained.job))) == CommitRef(generation=1, step=10)


def test_rewind_reaches_the_endpoint_it_is_given_and_writes_as_the_job_was_configured(
    s3_uri: str, s3_endpoint: str, s3_client: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    how = {"endpoint_url": "http://inside.example.com", "sse_kms_key_id": "some-key"}
    config = resolve({}, {"checkpoint": {"store": how}})
    store = open_store(f"{s3_uri}/blue", StoreConfig(endpoint_url=s3_endpoint))
    ensure_record(store, "blue", config, "data")
    kept = keep_config(store, config)
    form_generation(store, formation="f", nodes=1, world_size=1, config_hash=kept, rendezvous="")
    for step in (10, 20):
        store.create(CommitRef(generation=1, step=step).name, b"{}")

    done = convoy("rewind", "blue", "--to", 15, "--root", s3_uri, "--endpoint-url", s3_endpoint)

    assert (done.exit_code, done.stdout) == (0, f"job blue continues from step 10 of generation 1\n{UNTIL_THEN}")
    assert newest_commit(read_history(store)) == CommitRef(generation=1, step=10)
    bucket, _, prefix = s3_uri.removeprefix("s3://").partition("/")
    made = s3_client.head_object(Bucket=bucket, Key=f"{prefix}/blue/generations/000002.json")
    assert made["SSEKMSKeyId"] == "some-key"


def test_a_live_job_cannot_be_rewound(trained: Run, own: str) -> None:
    with LiveMarker(job_store(own, trained.job), "blue", "TrainFlow/1"):
        done = convoy("rewind", trained.job, "--to", 15, "--root", own)
    assert done.exit_code == 2
    assert "run TrainFlow/1 on " in done.stderr


def test_replay_to_tensorboard_writes_scalars_it_reads_back(trained: Run, tmp_path: Path) -> None:
    done = convoy("replay", trained.job, "--tensorboard", tmp_path, "--root", trained.place.root)
    assert (done.exit_code, f"scalars are in {tmp_path}" in done.stdout) == (0, True)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(tmp_path))
    log.Reload()
    assert [scalar.step for scalar in log.Scalars("train/loss")] == list(range(1, 21))


def test_replay_to_mlflow_makes_a_run_of_the_job_s_name(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    done = convoy("replay", trained.job, "--mlflow", uri, "--root", trained.place.root)
    assert done.exit_code == 0, done.output
    from mlflow.tracking import MlflowClient

    run = MlflowClient(uri).get_run(done.stdout.split()[-1])
    assert (run.info.run_name, run.info.status) == (trained.job, "FINISHED")
    assert run.data.params["train.steps"] == "20"


def test_replay_to_nothing_is_refused(trained: Run) -> None:
    line = "replay: needs --tensorboard FOLDER, --mlflow URI or --wandb PROJECT"
    assert_refused(line, "replay", trained.job, "--root", trained.place.root)


def test_a_target_with_a_password_is_refused_without_showing_it() -> None:
    done = convoy("replay", "any", "--mlflow", "https://me:hunter2@tracking")
    assert (done.exit_code, "hunter2" in done.stderr) == (2, False)
    assert done.stderr.startswith("convoy: --mlflow: must be a URI without a password")


def _unspaced(text: str) -> str:
    """Long lines are wrapped wherever they come to an edge."""
    return "".join(text.split())
