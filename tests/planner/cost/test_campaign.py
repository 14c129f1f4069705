"""What is expected of spot, against gangs that are simulated event by event, and what must hold of any."""

from dataclasses import asdict, dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from convoy.planner.cost.campaign import Campaign, expected_campaign
from convoy.planner.cost.failures import Drain, FailureModel, RestartCost, SaveCost, best_save_interval
from tests.campaign import examples, in_full, times
from tests.planner.simulation import Setting, Totals, simulate

pytestmark = pytest.mark.campaign

HOUR = 3600.0
GANGS, INTERRUPTIONS, NODES = 1500, 8, 4
AT_ONCE, SOON = SaveCost(1.0, 1.0), RestartCost(45.0, 60.0)


@dataclass(frozen=True)
class Case:
    """Gangs that are interrupted; seconds."""

    mtbf: float = HOUR
    saving: SaveCost = AT_ONCE
    restart: RestartCost = SOON
    announced: float = 0.0
    """Share of interruptions."""
    notice: float = 0.0
    """From when a last save can begin."""
    write: float = 0.0
    """For that save."""
    factor: float = 1.0
    """Of the best interval, from save to save."""

    @property
    def failures(self) -> FailureModel:
        return FailureModel(
            NODES, reclaim_seconds=self.mtbf, notice_seconds=self.notice, announced=self.announced,
            drain=Drain(0.0, self.write),
        )  # fmt: skip


HALF_A_MINUTE, BAD_DAY = SaveCost(1.0, 31.0), Case(3 * HOUR, SaveCost(0.5, 20.0), RestartCost(60.0, 600.0))
TOLD = Case(saving=HALF_A_MINUTE, announced=0.9, notice=22.0, write=15.0)

CASES = {
    "no notice": Case(),
    "durable after half a minute": Case(saving=HALF_A_MINUTE),
    "durable after an interval": Case(saving=SaveCost(1.0, 80.0)),
    "twice the best interval": Case(saving=HALF_A_MINUTE, factor=2.0),
    "long stalls": Case(saving=SaveCost(18.0, 18.0)),
    "all announced": replace(TOLD, announced=1.0, notice=60.0),
    "half announced": replace(TOLD, announced=0.5, notice=60.0),
    "no time beside a save": replace(TOLD, notice=15.0),
    "little time beside a save": TOLD,
    "too little time": replace(TOLD, notice=14.0),
    "a bad day": BAD_DAY,
    "a bad day with notice": replace(BAD_DAY, announced=0.9, notice=118.0, write=15.0),
    "two interruptions an hour": Case(HOUR / 2, SaveCost(20.0, 60.0), RestartCost(45.0, 300.0), 0.5, 100.0, 30.0),
}


def both(case: Case, gangs: int) -> tuple[Campaign, Totals]:
    """The formula and the simulation, of so many gangs."""
    told, saving, restart, work = case.failures, case.saving, case.restart, INTERRUPTIONS * case.mtbf
    interval = case.factor * best_save_interval(told, saving)
    setting = Setting(
        interval, saving.stall_seconds, saving.durable_seconds, restart.wait_seconds, restart.seconds, NODES,
        NODES * case.mtbf, case.announced, case.notice, case.write,
    )  # fmt: skip
    expected = expected_campaign(gangs * work, told.highest_rate, interval, told, saving, restart)
    return expected, simulate(setting, gangs, work, seed=1)


@pytest.mark.sampled(4)
@pytest.mark.processes
@pytest.mark.parametrize("case", CASES)
def test_it_costs_what_was_simulated(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected, simulated = both(CASES[case], times(GANGS))
    if in_full():
        with capsys.disabled():
            print(f"\n{case}: {simulated.interruptions} interruptions, overhead {100 * expected.overhead:.3f} %, "
                  f"simulated {100 * simulated.overhead:.3f} %")  # fmt: skip
    assert simulated.interruptions > 12_000
    assert expected.overhead == pytest.approx(simulated.overhead, rel=0.01 if in_full() else 0.02)
    assert expected.seconds == pytest.approx(simulated.seconds, rel=0.005)
    for name in ("recomputed", "draining", "waiting", "restarting"):
        other = getattr(simulated, name)
        assert getattr(expected, name) == pytest.approx(other, rel=0.06, abs=0.002 * simulated.seconds)


def test_gangs_in_other_intervals_lose_more() -> None:
    case = Case(saving=SaveCost(1.0, 20.0), announced=0.5, notice=60.0, write=15.0)
    fast, best, slow = (both(replace(case, factor=factor), 500)[1].overhead for factor in (0.4, 1.0, 2.5))
    assert best < 0.95 * fast
    assert best < 0.95 * slow


@pytest.mark.parametrize("announced", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(("stall", "mtbf"), [(0.5, HOUR), (5.0, 3 * HOUR), (1.0, 1e6), (60.0, 1e5)])
def test_no_other_interval_is_expected_to_lose_less(announced: float, stall: float, mtbf: float) -> None:
    told = FailureModel(NODES, reclaim_seconds=mtbf, announced=announced, drain=Drain(1.0, stall))
    saving = SaveCost(stall, stall)
    best = best_save_interval(told, saving)

    def overhead(interval: float) -> float:
        return expected_campaign(1e6, told.highest_rate, interval, told, saving, RestartCost(30.0, 60.0)).overhead

    assert all(overhead(best) <= 1.005 * overhead(factor * best) for factor in (0.5, 0.7, 0.9, 1.1, 1.4, 2.0))


FAILURES = st.builds(
    FailureModel, nodes=st.integers(1, 64), low=st.just(0.0), high=st.floats(0.01, 0.5),
    faults_seconds=st.floats(1e5, 1e8), notice_seconds=st.floats(0.0, 300.0), announced=st.floats(0.0, 1.0),
    drain=st.none() | st.builds(Drain, st.floats(0.0, 20.0), st.floats(0.1, 200.0)),
)  # fmt: skip
SAVINGS = st.builds(SaveCost, st.floats(0.01, 30.0), st.floats(0.0, 300.0))
RESTARTS = st.builds(RestartCost, st.floats(0.0, 300.0), st.floats(0.0, 1800.0))


def seconds(failures: FailureModel, saving: SaveCost, restart: RestartCost, interval: float | None = None) -> float:
    chosen = best_save_interval(failures, saving) if interval is None else interval
    return expected_campaign(1e7, failures.highest_rate, chosen, failures, saving, restart).seconds


def dearer_than_a_save(saving: SaveCost, restart: RestartCost) -> bool:
    """A last save stands in for a paced one, and is durable sooner: to be interrupted for less than that is a gain."""
    return restart.seconds + restart.wait_seconds >= saving.stall_seconds + saving.durable_seconds


@given(FAILURES, SAVINGS, RESTARTS, st.floats(1.0, 1e4), st.floats(1.0, 1.9))
@examples(100)
def test_who_is_interrupted_more_often_is_never_done_sooner(
    failures: FailureModel, saving: SaveCost, restart: RestartCost, interval: float, factor: float
) -> None:
    assume(dearer_than_a_save(saving, restart))
    more = replace(failures, high=min(0.9, factor * failures.high), faults_seconds=failures.faults_seconds / factor)
    assert seconds(failures, saving, restart, interval) <= seconds(more, saving, restart, interval) * (1 + 1e-9)
    assert seconds(failures, saving, restart) <= seconds(more, saving, restart) * (1 + 1e-4)


@given(FAILURES, SAVINGS, RESTARTS, st.floats(0.0, 300.0))
@examples(100)
def test_a_longer_notice_is_never_done_later(
    failures: FailureModel, saving: SaveCost, restart: RestartCost, longer: float
) -> None:
    # A last save takes no longer than a paced one. Where saves follow one after the other it takes longer than the
    # work that it keeps: a drain is then not worth it (docs/explanation/interruptions.md).
    if failures.drain is not None:
        assume(failures.drain.write_seconds <= saving.durable_seconds)
    assume(saving.durable_seconds + 3 * saving.stall_seconds <= best_save_interval(failures, saving))
    more = replace(failures, notice_seconds=failures.notice_seconds + longer)
    assert seconds(more, saving, restart) <= seconds(failures, saving, restart) * (1 + 1e-4)


@given(FAILURES, SAVINGS, RESTARTS)
@examples(100)
def test_more_frequent_interruptions_take_longer_and_the_parts_add_up(
    failures: FailureModel, saving: SaveCost, restart: RestartCost
) -> None:
    assume(dearer_than_a_save(saving, restart))
    interval = best_save_interval(failures, saving)
    rare, often = (
        expected_campaign(1e6, rate, interval, failures, saving, restart)
        for rate in (failures.lowest_rate, failures.highest_rate)
    )
    assert rare.seconds <= often.seconds * (1 + 1e-6)
    for each in (rare, often):
        parts = {
            name: value for name, value in asdict(each).items() if name not in ("interruptions", "saves", "resumed")
        }
        assert sum(parts.values()) == pytest.approx(each.seconds)
        assert each.productive == 1e6


def test_work_that_would_never_end_is_refused() -> None:
    told = FailureModel(4, reclaim_seconds=60.0)
    with pytest.raises(ValueError, match="hardly ever end"):
        expected_campaign(1e6, told.highest_rate, 60.0, told, SaveCost(1.0, 1.0), RestartCost(600.0))


def test_where_nothing_interrupts_it_is_saved_at_the_end_alone() -> None:
    told, saving = FailureModel(4), SaveCost(1.0, 1.0)
    found = expected_campaign(1e6, told.highest_rate, best_save_interval(told, saving), told, saving, RestartCost(60.0))
    assert (found.seconds, found.saves, found.interruptions) == (1e6, 0.0, 0.0)
