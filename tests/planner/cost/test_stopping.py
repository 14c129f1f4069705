"""That a plan tells where the run's own limits end it."""

import pytest

from convoy.planner.pages.plan import plan_line, plan_lines, warning
from convoy.planner.plan_schema import Plan
from tests.planner.test_plan import PRESETS, planned


def gang_hours(plan: Plan) -> float:
    assert plan.bought is not None
    return (plan.bought.seconds - plan.bought.parts["waiting"]) / 3600


@pytest.mark.parametrize("name", [path.stem for path in PRESETS])
def test_no_preset_is_ended_by_its_budget(name: str) -> None:
    assert planned(name).stop is None


def test_on_fewer_machines_the_hours_do_not_suffice() -> None:
    plan = planned("llama-13b-p5", "cluster.nodes=1")
    assert plan.stop is not None
    assert plan.budget is not None
    assert (plan.stop.key, plan.stop.limit) == ("budget.max_hours", 503)
    assert plan.stop.needed == pytest.approx(gang_hours(plan))
    assert plan.stop.tokens / plan.budget.tokens == pytest.approx(503 / gang_hours(plan))
    line = plan_lines(plan)["ends before its last step"]
    assert line in plan_line(plan)
    assert line.startswith("budget.max_hours = 503 is reached after about 77.2 B of 260 B tokens")


def test_who_starts_a_run_that_its_budget_ends_is_warned_of_that_unless_it_does_not_even_fit() -> None:
    stopped, without_room = planned("gpt-7b-p4d", "budget.max_hours=100"), planned("llama-13b-p5", "cluster.nodes=1")
    assert warning(stopped) == f"ends before its last step: {plan_lines(stopped)['ends before its last step']}"
    told = warning(without_room)
    assert told is not None
    assert told.startswith("does not fit")


def test_the_limit_that_is_reached_first_is_told() -> None:
    whole = planned("gpt-7b-p4d", "budget.max_cost_usd=null")
    assert whole.bought is not None
    assert whole.bought.cost is not None
    usd = gang_hours(whole) * 4 * whole.bought.cost.usd_per_hour
    assert whole.stop is None

    by_money = planned("gpt-7b-p4d", f"budget.max_cost_usd={usd / 2} budget.max_hours={gang_hours(whole) * 0.9}").stop
    assert by_money is not None
    assert by_money.key == "budget.max_cost_usd"
    assert by_money.needed == pytest.approx(usd)
    by_time = planned("gpt-7b-p4d", f"budget.max_cost_usd={usd * 0.9} budget.max_hours={gang_hours(whole) / 2}").stop
    assert by_time is not None
    assert by_time.key == "budget.max_hours"


def test_limits_that_suffice_end_nothing() -> None:
    whole = planned("gpt-7b-p4d", "budget.max_cost_usd=null")
    assert planned("gpt-7b-p4d", f"budget.max_cost_usd=null budget.max_hours={gang_hours(whole) + 1}").stop is None
