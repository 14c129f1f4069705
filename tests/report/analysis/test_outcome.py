"""A job's state is one word, which the card, the script's card and `convoy show` take from the same function."""

import pytest

from convoy.display.page import Callout, Page, Progress, Text
from convoy.job.events.registry import FailureDetected, GenerationEnded, NoticeReceived, Stopping
from convoy.job.heartbeat import Heartbeat
from convoy.report.analysis.outcome import state_word
from convoy.report.fold import fold
from convoy.report.pages.train import final_page, live_page, script_page
from tests.report.synthetic import CONFIG, Log, blocks, log_of_steps

BY = "run TrainFlow/7 on somewhere (pid 42)"
BEATS = Heartbeat(2.0, live=True, by=BY)
SILENT = Heartbeat(125.0, live=False, by=BY)


def noticed(source: str) -> Log:
    log = log_of_steps(1)
    log.add(NoticeReceived(source=source, notice="end", action="save_and_end", text="Ctrl-C"), node=1)
    log.add(Stopping(step=1, reason="preempted"), rank=0)
    log.add(GenerationEnded(outcome="preempted", step=1), node=0)
    return log


def about_to_end() -> Log:
    log = log_of_steps(1)
    log.add(NoticeReceived(source="interrupt", notice="end", action="end", text="Ctrl-C"), node=0)
    return log


def ended(outcome: str) -> Log:
    log = log_of_steps(1)
    log.add(GenerationEnded(outcome=outcome, step=1), node=0)
    return log


def restarting() -> Log:
    log = log_of_steps(1)
    log.add(FailureDetected(cause="exited", failed_node=1, worker=1, step=1, action="restart"), node=0)
    log.add(GenerationEnded(outcome="failed", step=1), node=0)
    return log


@pytest.mark.parametrize(
    ("log", "heartbeat", "word"),
    [
        (log_of_steps(0), BEATS, "starting"),
        (log_of_steps(1), BEATS, "running"),
        (restarting(), BEATS, "restarting"),
        (about_to_end(), BEATS, "ending"),
        (about_to_end(), SILENT, "lost"),
        (log_of_steps(1), SILENT, "lost"),
        (log_of_steps(1), None, "lost"),
        (restarting(), SILENT, "lost"),
        (Log(), BEATS, "starting"),
        (Log(), None, "not started"),
        (noticed("interrupt"), None, "interrupted"),
        (noticed("interrupt"), SILENT, "interrupted"),
        (noticed("drain"), None, "drained"),
        (noticed("spot"), None, "preempted"),
        (ended("finished"), SILENT, "finished"),
        (ended("stopped"), None, "stopped"),
        (ended("failed"), None, "failed"),
    ],
)
def test_the_log_and_the_heartbeat_give_the_state(log: Log, heartbeat: Heartbeat | None, word: str) -> None:
    report = fold(log.events, 170, heartbeat)
    assert state_word(report) == word
    pages = (live_page(report, CONFIG), final_page(report, CONFIG), script_page(report, "train.py"))
    assert {shown(page) for page in pages} == {word.capitalize()}


def test_a_run_that_was_killed_is_not_shown_as_one_that_trains() -> None:
    report = fold(log_of_steps(3).events, 170, SILENT)
    page = live_page(report, CONFIG)
    (callout,) = blocks(page, Callout)
    assert callout.title == "Lost at step 3"
    assert "its last heartbeat was 2 m 05 s ago. No checkpoint exists yet." in callout.text
    assert report.eta_seconds is None
    assert report.generations[-1].outcome == "ended without a word"


def test_a_card_that_is_not_drawn_again_says_that_the_run_ends_and_where_to_look() -> None:
    report = fold(about_to_end().events, 170)
    for page in (live_page(report, CONFIG), script_page(report, "train.py")):
        (callout,) = blocks(page, Callout)
        assert callout.title.startswith("Ending")
        assert callout.text.startswith("Ctrl-C. ")
        assert "`convoy show` reports how the run ended" in callout.text
    (progress,) = blocks(live_page(report, CONFIG), Progress)
    assert report.eta_seconds is not None
    assert progress.detail == ""


def test_a_card_that_shows_a_running_job_says_as_of_when() -> None:
    log = log_of_steps(1)
    assert fold(log.events).last_event == log.t
    assert "as of " in blocks(live_page(fold(log.events), CONFIG), Text)[0].text
    assert "as of " not in blocks(live_page(fold(log.events, None, SILENT), CONFIG), Text)[0].text


def test_an_interrupt_is_told_in_its_own_words() -> None:
    report = fold(noticed("interrupt").events)
    assert report.outcome.reason == "Ctrl-C"
    (callout,) = blocks(live_page(report, CONFIG), Callout)
    assert callout.title == "Interrupted at step 1"


def shown(page: Page) -> str:
    return blocks(page, Text)[0].text.partition(" · ")[0]
