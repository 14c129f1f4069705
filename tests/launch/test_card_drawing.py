"""How often, and when, a card costs a process."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from metaflow.plugins.cards.card_creator import CardProcessManager

from convoy.config.run import RunConfig
from convoy.display.page import Page, Text
from convoy.gang.messages import GangOutcome, PreemptedError
from convoy.gang.task import Node, Task
from convoy.launch.gang import step
from convoy.launch.gang.step import How
from metaflow_extensions.convoy.plugins.cards.convoy.components import draw, show

TASK = Task(RunConfig(), "a", "/root", "data", "fingerprint", None)
NODE = Node(1, 2, 1, "host", "TrainFlow/7", "f", 0, False)


class Card:
    """As Metaflow's: a refresh starts a process that writes it, unless one is at it already."""

    def __init__(self) -> None:
        self.components: list[Any] = []
        self.started: list[subprocess.Popen[bytes]] = []

    def clear(self) -> None:
        self.components.clear()

    def extend(self, components: list[Any]) -> None:
        self.components.extend(components)

    def refresh(self, force: bool) -> None:
        if not self.writing():
            self.started.append(subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(0.3)"]))
            CardProcessManager._register_card_process("ours", self.started[-1])

    def writing(self) -> bool:
        return any(process.poll() is None for process in self.started)


@pytest.fixture
def card() -> Iterator[Card]:
    yield Card()
    CardProcessManager._remove_card_process("ours")


def test_the_last_drawing_takes_the_place_of_the_one_that_is_still_written(card: Card) -> None:
    draw(card, Page("a", (Text("first"),)))
    assert card.writing()
    draw(card, Page("a", (Text("last"),)), force=True)
    assert (len(card.started), card.writing()) == (2, False)
    assert [process.returncode for process in card.started] == [-signal.SIGKILL, 0]


def test_a_refresh_waits_for_no_other_one_and_is_left_out(card: Card) -> None:
    for text in ("first", "second"):
        draw(card, Page("a", (Text(text),)))
    assert (len(card.started), card.writing()) == (1, True)
    assert [component.part for component in card.components] == [Text("second")]


def test_what_writes_a_card_outlives_a_ctrl_c(card: Card) -> None:
    draw(card, Page("a", (Text("first"),)))
    card.started[0].send_signal(signal.SIGINT)
    assert card.started[0].wait() == 0


def test_what_is_only_shown_starts_no_process(card: Card) -> None:
    show(card, Page("a", (Text("what it is"),)))
    assert [component.part for component in card.components] == [Text("what it is")]
    assert card.started == []


@pytest.mark.parametrize(
    ("early", "ended", "drawn"),
    [
        (None, "finished", ["refresh"]),
        (None, "preempted", ["refresh", "write"]),
        ("finished", "finished", ["refresh"]),  # what the step does after it may fail
        ("preempted", "preempted", ["show", "write"]),
    ],
)
def test_another_node_s_card_is_written_once_if_the_gang_is_lost_early(
    early: Any, ended: Any, drawn: list[How], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [early and GangOutcome(outcome=early), GangOutcome(outcome=ended)]

    class Gang:
        def __init__(self, task: Task, node: Node) -> None: ...
        def __enter__(self) -> "Gang":
            return self

        def __exit__(self, *_: object) -> None: ...
        def wait(self, seconds: float) -> GangOutcome | None:
            return outcomes.pop(0)

    monkeypatch.setattr(step, "Gang", Gang)
    found: list[How] = []
    try:
        step.run_gang_step(TASK, NODE, lambda page, how: found.append(how), "TrainFlow/7/train/3")
    except PreemptedError:
        assert ended == "preempted"
    assert found == drawn
