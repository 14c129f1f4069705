"""`convoy logs JOB`: which logs there are, and what one of them says; and `convoy drain JOB`."""

from pathlib import Path

import pytest

from convoy.config.run import RunConfig
from convoy.gang.notices.sources import DrainSource, read_drain
from convoy.job.heartbeat import LiveMarker
from convoy.job.rank_logs import log_name
from convoy.job.record import ensure_record, job_store
from tests.cli import assert_refused, convoy

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "errors.md"


@pytest.fixture
def root(store_uri: str) -> str:
    store = job_store(store_uri, "my-job")
    ensure_record(store, "my-job", RunConfig(), "data")
    for generation, rank in ((1, 0), (1, 3), (2, 0), (2, 3)):
        text = "".join(f"generation {generation}, rank {rank}, line {line}\n" for line in (1, 2, 3))
        store.write(log_name(generation, rank // 2, rank), text.encode())
    return store_uri


def test_a_rank_s_newest_log_is_printed(root: str) -> None:
    done = convoy("logs", "my-job", "--rank", "3", "--root", root)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"generation 2, rank 3, line {line}" for line in (1, 2, 3)]


def test_an_earlier_generation_s_last_lines_are_printed_and_followed_into_the_next(root: str) -> None:
    words = ("logs", "my-job", "--rank", "0", "--generation", "1", "--lines", "1", "--root", root)
    assert convoy(*words).stdout == "generation 1, rank 0, line 3\n"
    done = convoy(*words, "--follow")
    assert done.stdout.splitlines() == [
        "generation 1, rank 0, line 3",
        *(f"generation 2, rank 0, line {line}" for line in (1, 2, 3)),
    ]
    assert done.stderr == "convoy: rank 0, generation 2\n"


def test_without_a_rank_the_logs_that_there_are_are_listed(root: str) -> None:
    done = convoy("logs", "my-job", "--generation", "2", "--root", root)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["Generation", "Node", "Rank", "Size"],
        ["2", "0", "0", "87", "B"],
        ["2", "1", "3", "87", "B"],
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("logs my-job --rank 7", "--rank 7: has no log; ranks 0, 3 have"),
        ("logs my-job --follow", "--rank: required with --follow and --lines"),
        ("drain my-job", "job = my-job: no run is running it now"),
        ("drain my-jo", "job = my-jo: no such job under {root}; did you mean my-job?"),
    ],
)
def test_what_there_is_not_is_one_documented_line(root: str, words: str, line: str) -> None:
    with LiveMarker(job_store(root, "my-job"), "my-job", "TrainFlow/7"):
        pass
    assert_refused(line.format(root=root), *words.split(), "--root", root)
    assert read_drain(job_store(root, "my-job")) is None
    assert f"`convoy: {line.format(root='/home/me/.convoy')}`" in DOCUMENT.read_text()


@pytest.mark.parametrize(
    ("options", "how", "deadline"), [((), "save and end", None), (("--now",), "end on its last checkpoint", 0)]
)
def test_a_running_job_is_ordered_to_end(root: str, options: tuple[str], how: str, deadline: float | None) -> None:
    store = job_store(root, "my-job")
    with LiveMarker(store, "my-job", "TrainFlow/7"):
        convoy("drain", "my-job", "--root", root)
        done = convoy("drain", "my-job", *options, "--root", root)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"run TrainFlow/7 of job my-job was asked to {how}\n"
    notice = DrainSource(store, "TrainFlow/7").poll()
    assert notice is not None
    assert notice.deadline == deadline
    assert DrainSource(store, "TrainFlow/8").poll() is None
