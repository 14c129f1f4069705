"""`convoy logs JOB`: which logs there are, and what one of them says; and `convoy drain JOB`."""

from pathlib import Path

import click.testing
import pytest

from convoy.cli.main import main
from convoy.config.run import RunConfig
from convoy.gang.notices.sources import DrainSource, read_drain
from convoy.job.heartbeat import LiveMarker
from convoy.job.rank_logs import log_name
from convoy.job.record import ensure_record, job_store
from convoy.storage import Store

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "errors.md"


@pytest.fixture
def root(store_uri: str) -> str:
    store = job_store(store_uri, "blue")
    ensure_record(store, "blue", RunConfig(), "data")
    for generation, rank in ((1, 0), (1, 3), (2, 0), (2, 3)):
        text = "".join(f"generation {generation}, rank {rank}, line {line}\n" for line in (1, 2, 3))
        store.write(log_name(generation, rank // 2, rank), text.encode())
    return store_uri


def logs(*words: str, root: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, ["logs", *words, "--root", root])


def test_a_rank_s_newest_log_is_printed(root: str) -> None:
    done = logs("blue", "--rank", "3", root=root)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"generation 2, rank 3, line {line}" for line in (1, 2, 3)]


def test_an_earlier_generation_s_may_be_asked_for(root: str) -> None:
    done = logs("blue", "--rank", "0", "--generation", "1", "--lines", "1", root=root)
    assert done.stdout == "generation 1, rank 0, line 3\n"


def test_following_ends_with_the_run_and_says_where_a_generation_begins(root: str) -> None:
    done = logs("blue", "--rank", "0", "--generation", "1", "--lines", "1", "--follow", root=root)
    assert done.stdout.splitlines() == [
        "generation 1, rank 0, line 3",
        *(f"generation 2, rank 0, line {line}" for line in (1, 2, 3)),
    ]
    assert done.stderr == "convoy: rank 0, generation 2\n"


def test_without_a_rank_the_logs_that_there_are_are_listed(root: str) -> None:
    done = logs("blue", "--generation", "2", root=root)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["Generation", "Node", "Rank", "Size"],
        ["2", "0", "0", "87", "B"],
        ["2", "1", "3", "87", "B"],
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("blue", "--rank", "7"), "convoy: --rank 7: has no log; ranks 0, 3 have\n"),
        (("blue", "--follow"), "convoy: --rank: required with --follow and --lines\n"),
    ],
)
def test_what_there_is_not_is_told_in_one_line(root: str, words: tuple[str, ...], line: str) -> None:
    done = logs(*words, root=root)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", line)
    assert line.strip() in DOCUMENT.read_text()


@pytest.fixture
def job(store_uri: str) -> Store:
    store = job_store(store_uri, "my-job")
    ensure_record(store, "my-job", RunConfig(), "data")
    return store


def drain(*words: str, root: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, ["drain", *words, "--root", root])


def test_a_running_job_is_told(job: Store, store_uri: str) -> None:
    with LiveMarker(job, "my-job", "TrainFlow/7"):
        done = drain("my-job", root=store_uri)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "run TrainFlow/7 of job my-job was asked to save and end\n"
    notice = DrainSource(job, "TrainFlow/7").poll()
    assert notice is not None
    assert notice.deadline is None
    assert DrainSource(job, "TrainFlow/8").poll() is None


def test_it_may_be_told_to_end_now(job: Store, store_uri: str) -> None:
    with LiveMarker(job, "my-job", "TrainFlow/7"):
        drain("my-job", root=store_uri)
        done = drain("my-job", "--now", root=store_uri)
    assert done.stdout == "run TrainFlow/7 of job my-job was asked to end on its last checkpoint\n"
    notice = DrainSource(job, "TrainFlow/7").poll()
    assert notice is not None
    assert notice.deadline == 0


def test_a_job_that_no_run_is_running_is_refused(job: Store, store_uri: str) -> None:
    with LiveMarker(job, "my-job", "TrainFlow/7"):
        pass
    done = drain("my-job", root=store_uri)
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
