"""The last lines of a run's launcher: how the job stands, and what to type next."""

import sys

import pytest

from convoy.job.events.registry import GenerationEnded
from convoy.launch.run_summary import LaunchedRun, next_commands, print_run_summary, state_line
from convoy.report.fold import fold
from convoy.report.train_report import TrainReport
from tests.report.analysis.test_outcome import SILENT, noticed
from tests.report.synthetic import log_of_steps

RUN = LaunchedRun("TrainFlow", "7", has_job_option=True, cards=("train",))
AGAIN = "python train_flow.py run"


def at_step_1(*ends: GenerationEnded) -> TrainReport:
    """Killed, where nothing ended it."""
    log = log_of_steps(1)
    for end in ends:
        log.add(end, node=0)
    return fold(log.events, 8, None if ends else SILENT)


def finished() -> TrainReport:
    return at_step_1(GenerationEnded(outcome="finished", step=1))


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (fold(noticed("interrupt").events, 8), "interrupted at step 1 (Ctrl-C). No checkpoint exists yet."),
        (finished(), "finished at step 1. No checkpoint exists yet."),
        (at_step_1(), "lost at step 1 (run TrainFlow/7 on somewhere (pid 42) ended without a word"),
    ],
)
def test_the_state_of_the_job_is_one_line(report: TrainReport, line: str) -> None:
    assert state_line("blue", report).startswith(f"convoy: job blue: {line}")


def test_of_a_script_no_checkpoint_is_said_to_be_missing() -> None:
    report = fold(noticed("interrupt").events)
    assert state_line("blue", report) == "convoy: job blue: interrupted at step 1 (Ctrl-C)."


def test_a_job_that_has_not_begun_can_only_be_started() -> None:
    report = fold([], None, None)
    assert state_line("blue", report) == "convoy: job blue has not begun. No checkpoint exists yet."
    assert next_commands(RUN, "blue", "/jobs", AGAIN, report, None) == [f"  continue  {AGAIN} --job blue"]


def test_the_next_commands_are_card_show_and_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train_flow.py", "run"])
    monkeypatch.setenv("CONVOY_ROOT", "/jobs")
    assert next_commands(RUN, "blue", "/jobs", AGAIN, fold(noticed("interrupt").events), "7/train/3") == [
        "  card      python train_flow.py card view 7/train/3",
        "  show      convoy show blue",
        f"  continue  {AGAIN} --job blue",
    ]
    elsewhere = LaunchedRun("MyFlow", "7", has_job_option=False)
    assert next_commands(elsewhere, "blue", "s3://b/c", AGAIN, finished(), None) == [
        "  show      convoy show blue --root s3://b/c",
        f"  continue  {AGAIN} --tag job:blue  # with more train.steps",
    ]


def test_a_script_that_finished_is_not_continued_and_may_have_reported_no_step() -> None:
    log = log_of_steps(0)
    log.add(GenerationEnded(outcome="finished", step=0), node=0)
    report = fold(log.events)
    assert next_commands(RUN, "blue", "/jobs", AGAIN, report, None) == ["  show      convoy show blue --root /jobs"]
    assert state_line("blue", report) == "convoy: job blue: finished."


def test_a_program_that_started_the_run_is_told_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train_flow.py", "run", "--runner-attribute-file", "/tmp/x"])
    print_run_summary(RUN)
    assert capsys.readouterr() == ("", "")
