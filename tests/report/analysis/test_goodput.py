"""Where the time went: all of it, and nothing twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.display.page import Chart, Heading, Page, Table, Value, Values
from convoy.job.events.registry import (
    CheckpointSaved,
    Environment,
    Evaluated,
    Event,
    FailureDetected,
    GenerationEnded,
    RankThroughput,
    StepDone,
    WorkerReady,
)
from convoy.report.fold import fold
from convoy.report.pages.train import final_page
from convoy.report.train_report import Goodput, NodeTime
from tests.campaign import examples
from tests.report import naive
from tests.report.analysis.test_hardware_use import sampled
from tests.report.analysis.test_incidents import HAPPENINGS, disturbed
from tests.report.synthetic import (
    CONFIG,
    STEP_SECONDS,
    Log,
    failed_job,
    finished_job,
    log_of_steps,
    restarted_job,
    running_job,
)

pytestmark = pytest.mark.campaign

PARTS = ("productive", "recomputed", "checkpoint", "measuring", "restarting", "waiting", "other")


def spent(events: list[Event]) -> Goodput:
    found = fold(events, 170).goodput
    assert found is not None
    return found


def parts(row: NodeTime) -> dict[str, float]:
    return {part: getattr(row, f"{part}_seconds") for part in PARTS}


def row(log: Log, node: int = 0) -> dict[str, float]:
    """What there is anything of."""
    return {part: seconds for part, seconds in parts(spent(log.events).nodes[node]).items() if seconds}


def test_an_undisturbed_job_is_productive_but_for_its_start_its_saves_and_its_end() -> None:
    found = spent(finished_job())
    evaluations, steps = 3 * 0.5, (169 + 4 * 0.5) * STEP_SECONDS
    for node in found.nodes:
        found_ = parts(node)
        # A step of the synthetic log takes a little longer or less than the time between two.
        found_["productive"] += found_.pop("other")
        assert found_ == pytest.approx(
            {
                "productive": evaluations + steps,
                "recomputed": 0.0,
                "checkpoint": 2 * 0.2,
                "measuring": 0.0,
                "restarting": 1.5 + 1.5 * STEP_SECONDS,
                "waiting": 0.3,
            },
            abs=1e-4,
        )
    assert [node.node for node in found.nodes] == [0, 1]
    assert found.seconds == pytest.approx(found.nodes[0].seconds)
    assert found.share == pytest.approx((evaluations + steps) / found.seconds, rel=0.01)


def test_steps_that_were_lost_are_recomputed_and_the_way_back_is_restarting() -> None:
    report = fold(restarted_job(), 170)
    calm, disturbed_ = spent(finished_job()).nodes[0], spent(restarted_job()).nodes[0]
    assert disturbed_.recomputed_seconds == pytest.approx(35 * STEP_SECONDS, rel=0.01)
    # From the kill: 0.4 s until the next generation forms, and its start-up.
    assert disturbed_.restarting_seconds - calm.restarting_seconds == pytest.approx(0.4 + 1.5 + 1.5 * STEP_SECONDS)
    assert report.started is not None
    assert report.last_event is not None
    assert report.wall_seconds == pytest.approx(report.last_event - report.started)
    assert disturbed_.seconds == pytest.approx(report.wall_seconds)


def test_machines_may_be_gone_between_attempts() -> None:
    log = Log(events=failed_job())
    log.wait(100)
    log.form(1, attempt=1, parent=85)
    log.step(86)
    pause = log.events[-1].t - log.events[0].t - spent(log.events).seconds
    assert pause == pytest.approx(100)


def test_a_hang_is_restarting_from_the_last_progress_on() -> None:
    log = log_of_steps(2)
    log.wait(0.5)  # in the third step
    log.wait(3)
    log.add(FailureDetected(cause="hung", failed_node=1, worker=1, silent_seconds=3.0), node=0)
    log.wait(1)
    log.add(GenerationEnded(outcome="failed"), node=0)
    assert row(log) == pytest.approx({"productive": 1.0, "recomputed": 0.5, "restarting": 1.0 + 3 + 1})


def test_a_running_gang_that_hangs_waits_though_its_hardware_is_sampled() -> None:
    log = log_of_steps(20)
    before = spent(log.events)
    for _ in range(120):
        log.wait(5)
        log.add(sampled(5.0), node=0)
    assert row(log) == pytest.approx({"productive": 19.0 + 1, "restarting": 1.0, "waiting": 599.0})
    assert spent(log.events).share == pytest.approx(20 / 620)
    assert spent(log.events).share < before.share


def test_a_running_gang_s_next_logged_step_may_take_as_long_as_the_last_one() -> None:
    log = log_of_steps(0)
    for logged in (10, 20):
        log.wait(10)
        log.add(StepDone(step=logged, loss=1, grad_norm=1, lr=1, tokens=1, seconds=1), rank=0)
    log.wait(9)
    log.add(sampled(5.0), node=0)
    assert row(log) == pytest.approx({"productive": 19.0, "restarting": 10.0})
    log.wait(4)
    log.add(sampled(5.0), node=0)
    assert row(log) == pytest.approx({"productive": 20.0, "restarting": 10.0, "waiting": 3.0})


def test_steps_that_were_not_logged_count_by_even_pace() -> None:
    log = log_of_steps(0)
    log.wait(2)
    log.add(WorkerReady(phase="first_step", seconds=2.0), rank=0)  # step 1
    for logged in (10, 20):
        log.wait(logged - 1 if logged == 10 else 10)
        log.add(StepDone(step=logged, loss=1, grad_norm=1, lr=1, tokens=1, seconds=1), rank=0)
    assert row(log) == pytest.approx({"productive": 19.0, "restarting": 2.0})
    log.form(1, attempt=1, parent=15)
    assert row(log) == pytest.approx({"productive": 14.0, "recomputed": 5.0, "restarting": 2.0})


def test_measuring_the_machine_is_not_productive() -> None:
    """As a real log has it: rank 0 is ready after its first step, and measures before it reports its environment."""
    log = log_of_steps(1)
    log.add(WorkerReady(phase="first_step", seconds=1.0), rank=0)
    log.wait(2.6)
    log.add(Environment(versions={}, device="cpu", threads=1), rank=0)
    assert row(log) == pytest.approx({"measuring": 2.6, "restarting": 1.0})
    log.wait(0.2)  # the writer of checkpoints starts
    log.step(2)
    log.wait(0.1)
    log.step(3)
    whole = {"productive": 2.0, "measuring": 2.8, "restarting": 1.0, "other": 0.1}
    assert row(log) == pytest.approx(whole)
    without_reports = [e for e in log.events if not isinstance(e, Environment | WorkerReady)]
    assert row(Log(events=without_reports)) == pytest.approx(whole)


def test_measuring_the_machine_is_not_productive_where_not_every_step_is_logged() -> None:
    log = log_of_steps(0)
    log.wait(1)
    log.add(WorkerReady(phase="first_step", seconds=1.0), rank=0)
    log.wait(2.6)
    log.add(Environment(versions={}, device="cpu", threads=1), rank=0)
    log.wait(8)
    log.step(10)
    assert row(log) == pytest.approx({"productive": 9.0, "measuring": 2.6, "restarting": 1.0})


def test_a_generation_that_is_started_over_is_lost_whole() -> None:
    log = log_of_steps(0)
    log.wait(1)
    log.add(Evaluated(step=0, loss=1, bits_per_byte=None, tokens=1, seconds=0.5), rank=0)
    log.step(1)
    log.step(2)
    log.form(1, attempt=1)
    assert row(log) == pytest.approx({"recomputed": 1.0 + 0.5, "restarting": 1.5})


def test_what_each_node_waited_for_the_others_is_its_own() -> None:
    log = log_of_steps(5)
    for rank, node, waited in ((0, 0, 0.5), (1, 0, 1.5), (2, 1, 0.0)):
        log.add(RankThroughput(step=5, tokens=1, seconds=5.0, waited_seconds=waited), rank=rank, node=node)
    assert row(log, 0) == pytest.approx({"productive": 3.0, "restarting": 1.0, "waiting": 1.0})
    assert row(log, 1) == pytest.approx({"productive": 4.0, "restarting": 1.0})
    assert spent(log.events).share == pytest.approx(7 / 10)


def test_the_last_save_is_a_checkpoint_s_time_and_the_rest_of_the_end_is_waiting() -> None:
    log = log_of_steps(2)
    log.wait(1.5)
    log.add(CheckpointSaved(step=2, attempt="a", bytes=1, seconds=1.5), rank=0)
    log.wait(0.5)
    log.add(GenerationEnded(outcome="finished"), node=0)
    assert row(log) == pytest.approx({"productive": 1.0, "checkpoint": 1.5, "restarting": 1.0, "waiting": 0.5})


def test_the_page_shows_the_share_and_each_node() -> None:
    page: Page = final_page(fold(restarted_job(), 170), CONFIG)
    values = [v for b in page.blocks if isinstance(b, Values) for v in b.items]
    share = spent(restarted_job()).share
    assert Value("Goodput", f"{100 * share:.1f} %", "of 1 m 30 s, 2 generations, 1 incident", "warning") in values
    assert Heading("Goodput", folded=True) in page.blocks
    (bar,) = [b for b in page.blocks if isinstance(b, Chart) and "productive" in b.series]
    assert sum(seconds for (seconds,) in bar.series.values()) == pytest.approx(spent(restarted_job()).seconds)
    table = next(b for b in page.blocks if isinstance(b, Table) and "Productive" in b.headers)
    assert [cells[0] for cells in table.rows] == ["0", "1"]


def test_a_job_without_a_step_has_no_goodput_to_show() -> None:
    log = Log()
    log.start()
    page = final_page(fold(log.events), CONFIG)
    assert "Goodput" not in [block.text for block in page.blocks if isinstance(block, Heading)]
    assert Value("Goodput", "—", "no step in 1.5 s, 1 generation") in [
        v for b in page.blocks if isinstance(b, Values) for v in b.items
    ]


@given(HAPPENINGS)
@examples(150)
def test_whatever_happened_each_node_s_parts_are_a_naive_fold_s_and_add_up_to_the_gang_s_time(
    happenings: list[tuple[str, int]],
) -> None:
    log = disturbed(happenings)
    found = spent(log.events)
    for node in found.nodes:
        assert all(seconds >= -1e-6 for seconds in parts(node).values())
        assert sum(parts(node).values()) == pytest.approx(found.seconds)
    assert 0 <= found.share <= 1
    # Without a pause between attempts the gang's time is the whole.
    assert found.seconds <= log.events[-1].t - log.events[0].t + 1e-6
    assert_as_naive(log.events, seconds=1e-4)


@given(st.integers(1, len(restarted_job())))
@examples(60)
def test_every_prefix_of_a_log_adds_up(length: int) -> None:
    events = restarted_job()[:length]
    found = spent(events)
    assert all(sum(parts(node).values()) == pytest.approx(found.seconds) for node in found.nodes)
    assert found.seconds == pytest.approx(events[-1].t - events[0].t)


@given(st.integers(1, len(running_job())))
@examples(30)
def test_a_running_job_s_productive_time_never_falls(length: int) -> None:
    events = running_job()
    before, after = spent(events[:length]).nodes[0], spent(events).nodes[0]
    assert after.productive_seconds >= before.productive_seconds - 1e-6


def assert_as_naive(events: list[Event], seconds: float) -> None:
    """To within so many seconds. What is neither a step nor anything else that is logged has two names."""
    report = fold(events, 170)
    assert report.goodput is not None
    for row_ in report.goodput.nodes:
        found, told = parts(row_), naive.goodput(events, report.generations)[row_.node]
        assert found["measuring"] >= told["measuring"] - seconds
        found["other"] += found.pop("measuring")
        told["other"] += told.pop("measuring")
        assert found == pytest.approx(told, abs=seconds)
