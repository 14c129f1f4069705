"""A gang's step: its cards, which must never harm the gang, and nodes that ended before they joined."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from metaflow.plugins.cards.card_creator import CardProcessManager

from convoy.config.run import RunConfig
from convoy.display.page import Page, Text
from convoy.gang.agent import Gang
from convoy.gang.messages import GangOutcome, PreemptedError
from convoy.gang.task import Node, Task
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import StepDone
from convoy.job.generations import FormationError, refuse_formation
from convoy.launch.gang import step
from convoy.launch.gang import step as live_card
from convoy.launch.gang.step import FormationObstacle, How, LiveCard, failed_sibling_text
from convoy.storage.posix import PosixStore
from metaflow_extensions.convoy.plugins.cards.convoy.components import draw, show
from tests.gang.tasks import a_node, a_task, wait_for


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

    with LiveCard(store, RunConfig(), draw, seconds=0.01):
        assert thrice.wait(20)
    assert "step 7 of 500, loss 3.50" in capsys.readouterr().out


def test_a_card_that_cannot_be_drawn_is_a_line_of_output(store: PosixStore, capsys: pytest.CaptureFixture[str]) -> None:
    failed = threading.Event()

    def draw(page: Page, how: How) -> None:
        failed.set()
        raise ValueError("no chart today")

    with LiveCard(store, RunConfig(), draw, seconds=0.01) as card:
        assert failed.wait(20)
    card.finish(force=True)
    assert "the card was not drawn: ValueError: no chart today" in capsys.readouterr().err


def test_the_last_drawing_is_forced_when_the_task_is_about_to_fail(store: PosixStore) -> None:
    drawn: list[How] = []
    with LiveCard(store, RunConfig(), lambda page, how: drawn.append(how), seconds=1000) as card:
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

    with LiveCard(store, RunConfig(), draw, seconds=0.01) as card:
        assert begun.wait(20)
    if not force:
        threading.Timer(0.2, waits.set).start()
    card.finish(force=force)
    assert drawn == (["write"] if force else ["refresh", "refresh"])
    waits.set()


def test_a_root_that_hangs_does_not_hold_the_end_of_a_task(store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_card, "LAST_SECONDS", 0.2)
    hangs = threading.Event()
    card = LiveCard(store, RunConfig(), lambda page, how: None, 60.0)
    monkeypatch.setattr(card, "_report", lambda: hangs.wait(30))
    began = time.monotonic()
    card.finish(force=True)
    assert time.monotonic() - began < 5.0
    hangs.set()


@pytest.fixture(autouse=True)
def _no_child_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the process that runs the tests may have left unreaped."""
    before = {pid for pid, _ in step._ended_children()}
    found = step._ended_children

    def since() -> Iterator[tuple[int, int]]:
        return ((pid, code) for pid, code in found() if pid not in before)

    monkeypatch.setattr(step, "_ended_children", since)


@pytest.mark.parametrize(
    ("code", "leads_session", "is_seen"),
    [("import sys; sys.exit(3)", False, True), ("pass", False, False), ("import sys; sys.exit(3)", True, False)],
)
def test_a_sibling_that_ended_with_an_error_is_seen_until_it_is_reaped(
    code: str, leads_session: bool, is_seen: bool
) -> None:
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=leads_session)
    wait_for("its end", lambda: (Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]) == "Z")
    told = failed_sibling_text()
    assert (told is not None) == is_seen
    assert told is None or f"(pid {child.pid}) ended before it had joined" in told
    child.wait()
    assert failed_sibling_text() is None


def test_a_node_without_a_gang_to_come_does_not_keep_node_0_waiting(tmp_path: Path) -> None:
    task, node = a_task(str(tmp_path)), a_node(nproc=1, nodes=2)
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit('no module named metaflow')"])
    began = time.monotonic()
    with pytest.raises(FormationError, match="the process of another node"):
        Gang(task, node, FormationObstacle(PosixStore(tmp_path / "job"), node)).__enter__()
    assert time.monotonic() - began < 30
    child.wait()


@pytest.mark.processes
def test_what_another_node_left_in_the_store_is_told(tmp_path: Path) -> None:
    store, node = PosixStore(tmp_path), replace(a_node(nproc=1, nodes=2), shares_host=False)
    asked = FormationObstacle(store, node)
    assert asked() is None
    refuse_formation(store, node.formation, "node 1: nproc_per_node = 4: this machine has 2 GPUs")
    assert str(wait_for("the word of the other node", asked)).startswith("node 1: nproc_per_node = 4")
    assert FormationObstacle(store, replace(node, index=1))() is None


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
