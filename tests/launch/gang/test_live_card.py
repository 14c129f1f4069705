"""The live card must never harm the gang that it shows."""

import threading
import time
from pathlib import Path

import pytest

from convoy.config.run import RunConfig
from convoy.display.page import Page
from convoy.job.events.log import EventWriter
from convoy.job.events.types import StepDone
from convoy.launch.gang import step as live_card
from convoy.launch.gang.step import How, LiveCard, Watch
from convoy.storage.posix import PosixStore


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    made = PosixStore(tmp_path)
    log = EventWriter(made, 1, 0, 0)
    log.append(StepDone(step=7, loss=3.5, grad_norm=1.0, lr=0.1, tokens=100, seconds=0.5))
    log.close()
    return made


def test_it_draws_again_and_again_and_says_where_the_job_stands(
    store: PosixStore, capsys: pytest.CaptureFixture[str]
) -> None:
    pages: list[Page] = []
    thrice = threading.Event()

    def draw(page: Page, how: How) -> None:
        assert how == "refresh"
        pages.append(page)
        if len(pages) == 3:
            thrice.set()

    with LiveCard(Watch.of(store, RunConfig()), draw, seconds=0.01):
        assert thrice.wait(20)
    assert "step 7 of 500, loss 3.50" in capsys.readouterr().out


def test_a_card_that_cannot_be_drawn_is_a_line_of_output(store: PosixStore, capsys: pytest.CaptureFixture[str]) -> None:
    failed = threading.Event()

    def draw(page: Page, how: How) -> None:
        failed.set()
        raise ValueError("no chart today")

    with LiveCard(Watch.of(store, RunConfig()), draw, seconds=0.01) as card:
        assert failed.wait(20)
    card.finish(force=True)
    assert "the card was not drawn: ValueError: no chart today" in capsys.readouterr().err


def test_the_last_drawing_is_forced_when_the_task_is_about_to_fail(store: PosixStore) -> None:
    drawn: list[How] = []
    with LiveCard(Watch.of(store, RunConfig()), lambda page, how: drawn.append(how), seconds=1000) as card:
        assert drawn == []
    card.finish(force=True)
    assert drawn == ["write"]


@pytest.mark.parametrize("force", [True, False])
def test_only_the_last_drawing_of_a_task_that_ends_well_waits_for_the_one_under_way(
    force: bool, store: PosixStore
) -> None:
    drawn: list[How] = []
    begun, waits = threading.Event(), threading.Event()

    def draw(page: Page, how: How) -> None:
        if not begun.is_set():
            begun.set()
            waits.wait(20)
        drawn.append(how)

    with LiveCard(Watch.of(store, RunConfig()), draw, seconds=0.01) as card:
        assert begun.wait(20)
    if not force:
        threading.Timer(0.2, waits.set).start()
    card.finish(force=force)
    assert drawn == (["write"] if force else ["refresh", "refresh"])
    waits.set()


def test_a_root_that_hangs_does_not_hold_the_end_of_a_task(store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_card, "LAST_SECONDS", 0.2)
    hangs = threading.Event()
    card = LiveCard(Watch.of(store, RunConfig()), lambda page, how: None, 60.0)
    monkeypatch.setattr(card._watch, "report", lambda: hangs.wait(30))
    began = time.monotonic()
    card.finish(force=True)
    assert time.monotonic() - began < 5.0
    hangs.set()
