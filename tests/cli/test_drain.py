"""`convoy drain JOB` writes its wish where the agents of the job look for it, and only if there are any."""

from pathlib import Path

import click.testing
import pytest

from convoy.cli.main import main
from convoy.config.run import RunConfig
from convoy.gang.notices.sources import DrainSource, read_drain
from convoy.job.heartbeat import LiveMarker
from convoy.job.record import ensure_record, job_store
from convoy.storage import Store

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "errors.md"


@pytest.fixture
def root(store_uri: str) -> str:
    return store_uri


@pytest.fixture
def job(root: str) -> Store:
    store = job_store(root, "my-job")
    ensure_record(store, "my-job", RunConfig(), "data")
    return store


def drain(*words: str, root: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, ["drain", *words, "--root", root])


def test_a_running_job_is_told(job: Store, root: str) -> None:
    with LiveMarker(job, "my-job", "TrainFlow/7"):
        done = drain("my-job", root=root)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "run TrainFlow/7 of job my-job was told to save and end\n"
    notice = DrainSource(job, "TrainFlow/7").poll()
    assert notice is not None
    assert notice.deadline is None
    assert DrainSource(job, "TrainFlow/8").poll() is None


def test_it_may_be_told_to_end_now(job: Store, root: str) -> None:
    with LiveMarker(job, "my-job", "TrainFlow/7"):
        drain("my-job", root=root)
        done = drain("my-job", "--now", root=root)
    assert done.stdout == "run TrainFlow/7 of job my-job was told to end on its last checkpoint\n"
    notice = DrainSource(job, "TrainFlow/7").poll()
    assert notice is not None
    assert notice.deadline == 0


def test_a_job_that_no_run_is_running_is_refused(job: Store, root: str) -> None:
    with LiveMarker(job, "my-job", "TrainFlow/7"):
        pass
    done = drain("my-job", root=root)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "convoy: job = my-job: no run is running it now\n"
    assert read_drain(job) is None
    assert done.stderr.strip() in DOCUMENT.read_text()


def test_a_job_that_there_is_not_is_refused(tmp_path: Path) -> None:
    root = str(tmp_path)
    ensure_record(job_store(root, "my-job"), "my-job", RunConfig(), "data")
    done = drain("my-jo", root=root)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.replace(root, "/home/me/.convoy").strip() in DOCUMENT.read_text()
