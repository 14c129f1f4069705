"""A notice leads to an order, with a save if there is time for it; sources are polled next to each other."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import Empty
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.config.train import NoticesConfig
from convoy.drills.testbed.imds import ImdsStandIn
from convoy.gang.notices.notice import (
    END_SECONDS,
    FIRST_SAVE_SECONDS,
    NoAnswerError,
    Notice,
    Poller,
    SourceStatus,
    ending_evidence,
    order_for,
    poll_once,
    seconds_to_end,
    strongest_order,
)
from convoy.gang.notices.sources import machine_sources
from convoy.gang.workers.board import OrderKind
from tests.gang.tasks import wait_for

CONFIG = NoticesConfig()
NOW = 1_800_000_000.0

seconds = st.floats(0.001, 1000)
orders = st.sampled_from(["none", "save", "save_and_end", "end"])


def end(deadline: float | None) -> Notice:
    return Notice("spot", "end", deadline, "it ends")


def left(remaining: float, save_seconds: float, step_seconds: float) -> OrderKind:
    """The decision with so many seconds left."""
    return order_for(end(NOW + remaining), CONFIG, save_seconds, step_seconds, NOW, unsaved=True)


def test_two_minutes_are_enough_for_a_save_of_a_minute_and_a_half() -> None:
    assert left(120, save_seconds=90, step_seconds=2) == "save_and_end"
    assert left(120, save_seconds=120, step_seconds=2) == "end"


def test_long_steps_leave_less_time() -> None:
    assert left(30, save_seconds=5, step_seconds=10) == "save_and_end"
    assert left(30, save_seconds=5, step_seconds=12) == "end"


def test_a_save_that_was_never_measured_is_tried_where_there_is_some_time() -> None:
    assert left(FIRST_SAVE_SECONDS + 5, save_seconds=0, step_seconds=0.1) == "save_and_end"
    assert left(FIRST_SAVE_SECONDS, save_seconds=0, step_seconds=0.1) == "end"


@given(st.floats(0, 1000), seconds)
def test_at_once_means_without_a_save(save: float, step: float) -> None:
    assert order_for(end(0), CONFIG, save, step, NOW, unsaved=True) == "end"
    assert left(-1, save, step) == "end"


@given(st.floats(0, 1e6), seconds)
def test_where_there_is_no_hurry_it_is_saved(save: float, step: float) -> None:
    assert order_for(end(None), CONFIG, save, step, NOW, unsaved=True) == "save_and_end"


@given(st.floats(0, 1000), st.none() | st.floats(0, 2 * NOW))
def test_before_a_step_was_done_there_is_nothing_to_save(save: float, deadline: float | None) -> None:
    assert order_for(end(deadline), CONFIG, save, 0, NOW, unsaved=False) == "end"


@given(seconds, seconds, seconds, st.floats(0, 1000))
def test_more_time_never_leads_to_less(remaining: float, save: float, step: float, more: float) -> None:
    if left(remaining, save, step) == "save_and_end":
        assert left(remaining + more, save, step) == "save_and_end"


@given(seconds, seconds, seconds)
def test_a_save_is_ordered_only_where_it_fits(remaining: float, save: float, step: float) -> None:
    if left(remaining, save, step) == "save_and_end":
        assert remaining >= save + step
        assert remaining >= seconds_to_end(save, step) - 1e-3  # of a Unix time in a float


@given(st.floats(0, 1000), st.floats(0, 1000), st.none() | st.floats(0, 2 * NOW))
def test_a_recommendation_leads_to_what_is_configured(save: float, step: float, deadline: float | None) -> None:
    notice = Notice("rebalance", "rebalance", deadline, "better leave")
    policies: dict[str, OrderKind] = {"ignore": "none", "save": "save", "drain": "save_and_end"}
    for policy, order in policies.items():
        config = NoticesConfig.model_validate({"rebalance": policy})
        assert order_for(notice, config, save, step, NOW, unsaved=True) == order


def test_of_several_orders_the_one_that_ends_soonest_counts() -> None:
    assert strongest_order(["save", "end", "save_and_end", "none"]) == "end"
    assert strongest_order(["none", "save_and_end", "save"]) == "save_and_end"
    assert strongest_order([]) == "none"


@given(st.lists(orders))
def test_in_which_order_notices_come_does_not_matter(several: list[OrderKind]) -> None:
    one = strongest_order(several)
    assert strongest_order(reversed(several)) == strongest_order([*several, one]) == one


@pytest.mark.parametrize(
    ("deadline", "worth_waiting", "ends_at"),
    [
        (NOW + 90, True, 500.0 + 90 - END_SECONDS),
        (0.0, True, 500.0 + END_SECONDS),  # however late it comes, the workers get a moment
        (None, True, None),
        (None, False, 500.0),  # before a step was done nobody is waited for
    ],
)
def test_the_gang_ends_some_time_before_its_machine_does(
    deadline: float | None, worth_waiting: bool, ends_at: float | None
) -> None:
    sign = ending_evidence(end(deadline), 1, 500.0, NOW, worth_waiting=worth_waiting)
    assert (sign.kind, sign.node, sign.by, sign.at, sign.deadline) == ("notice", 1, 1, 500.0, ends_at)


NOTICE = Notice("scripted", "end", None, "it ends")
LATER = Notice("scripted", "end", None, "it ends, again")

Step = Notice | Exception | Callable[[], Notice | None] | None


def answering(poller: Poller) -> list[str]:
    """Names of the sources that answer."""
    return [status.source for status in poller.statuses() if status.answers]


@dataclass
class Scripted:
    """A source that answers by a script; the last line is repeated."""

    script: list[Step]
    name: str = "scripted"
    foretells: bool = True
    asked: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def poll(self) -> Notice | None:
        step = self.script[min(self.asked, len(self.script) - 1)]
        with self.changed:
            self.asked += 1
            self.changed.notify_all()
        if isinstance(step, Exception):
            raise step
        return cast("Callable[[], Notice | None]", step)() if callable(step) else step

    def wait_asked(self, times: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.asked >= times, 5)


@pytest.fixture
def hung() -> Iterator[Scripted]:
    """A source that does not come back."""
    done = threading.Event()
    yield Scripted([lambda: cast("None", done.wait(60) and None)], name="hung")
    done.set()


def polling(*sources: Scripted, deadline_seconds: float = 0.3) -> Poller:
    return Poller(sources, poll_seconds=0.01, deadline_seconds=deadline_seconds)


def test_each_notice_is_told_once() -> None:
    source = Scripted([None, NOTICE, NOTICE, None, NOTICE, LATER])
    with polling(source) as poller:
        assert poller.notices.get(timeout=5) == NOTICE
        assert poller.notices.get(timeout=5) == LATER
        source.wait_asked(12)
        assert poller.notices.empty()


def test_a_source_that_hangs_holds_up_no_other(hung: Scripted) -> None:
    quick = Scripted([None, None, NOTICE], name="quick")
    with polling(hung, quick) as poller:
        assert poller.notices.get(timeout=5) == NOTICE
        standings = poller.await_first_round()
        assert answering(poller) == ["quick"]
    assert hung.asked == 1
    assert standings[0] == SourceStatus("hung", True, False, standings[0].problem)
    assert standings[1] == SourceStatus("quick", True, True, "")


def test_a_source_that_hangs_is_told_by_how_long_it_was_waited_for(hung: Scripted) -> None:
    with polling(hung) as poller:
        assert poller.statuses()[0].problem == "not polled yet"
        began = time.monotonic()
        poller.await_first_round()
        assert 0.2 < time.monotonic() - began < 2
        time.sleep(0.05)
        assert re.fullmatch(r"no answer for \d\.\d s", poller.statuses()[0].problem)


def test_a_source_that_hangs_later_stops_answering(hung: Scripted) -> None:
    source = Scripted([None, hung.script[0]])
    with polling(source, deadline_seconds=0.1) as poller:
        poller.await_first_round()
        source.wait_asked(2)
        wait_for("the end of the answers", lambda: not answering(poller))


def test_a_source_that_fails_is_asked_again_and_told_why() -> None:
    gate = threading.Event()
    source = Scripted([NoAnswerError("503"), lambda: cast("None", gate.wait(5) and None), NOTICE])
    with polling(source, deadline_seconds=5) as poller:
        source.wait_asked(2)
        assert poller.statuses() == [SourceStatus("scripted", True, False, "503")]
        gate.set()
        assert poller.notices.get(timeout=5) == NOTICE
        source.wait_asked(4)
        assert poller.statuses() == [SourceStatus("scripted", True, True, "")]


def test_a_fault_in_a_source_does_not_silence_it() -> None:
    with polling(Scripted([KeyError("time"), NOTICE])) as poller:
        assert poller.notices.get(timeout=5) == NOTICE
    assert poll_once([Scripted([KeyError("time")])]) == [SourceStatus("scripted", True, False, "KeyError: 'time'")]


def test_after_the_end_nothing_is_asked_or_told() -> None:
    gate = threading.Event()
    late = Scripted([lambda: NOTICE if gate.wait(5) else None])
    with polling(late) as poller:
        late.wait_asked(1)
    gate.set()
    with pytest.raises(Empty):
        poller.notices.get(timeout=0.2)
    assert late.asked == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "notices scripted"]


def test_a_source_that_hangs_does_not_keep_the_process_from_ending() -> None:
    program = (
        "import threading\n"
        "from convoy.gang.notices.notice import Poller\n"
        "class Hung:\n"
        "    name, foretells = 'hung', True\n"
        "    def poll(self): threading.Event().wait()\n"
        "with Poller([Hung()], deadline_seconds=0.1) as poller:\n"
        "    poller.await_first_round()\n"
        "print('over')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")


def test_a_spot_notice_is_seen_at_the_next_look(imds: ImdsStandIn) -> None:
    environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}
    with Poller(machine_sources(environ, NoticesConfig()), NoticesConfig().poll_seconds) as poller:
        assert {standing.source for standing in poller.await_first_round() if standing.answers} >= {"spot", "rebalance"}
        time.sleep(0.3)  # between two looks
        imds.announce_interruption()
        given = time.monotonic()
        assert poller.notices.get(timeout=5).source == "spot"
        assert time.monotonic() - given <= 4.0
