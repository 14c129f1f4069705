"""The parts of a plan's page: sentences that are true whichever side of nothing a figure is on."""

from dataclasses import replace

import pytest

from convoy.display.page import Text
from convoy.planner.pages.plan import plan_page
from convoy.planner.pages.sections import BLOCKS
from convoy.planner.plan_schema import Plan
from tests.report.plans import planned


def lines(plan: Plan) -> list[str]:
    return [block.text for block in plan_page(plan).blocks if isinstance(block, Text)]


@pytest.mark.parametrize(
    ("seconds", "usd", "told"),
    [
        (0.2, 0.3, "more time: as long as the best."),
        (31.0, 3.2, "more time: 31.0 s more than the best, and 3 USD more."),
        (
            7200.0,
            -4.0,
            "more time: 2 h 00 m more than the best, and 4 USD less, because fewer requests to S3 are billed.",
        ),
        (31.0, None, "more time: 31.0 s more than the best."),
        (-9.0, -4.0, "more time: 9.0 s less, but each save would begin before the previous one is durable."),
        (None, 4.0, "more time."),
    ],
)
def test_an_interval_is_compared_with_the_best_in_what_that_is_best_by(
    seconds: float | None, usd: float | None, told: str
) -> None:
    plan = planned()
    assert plan.saves is not None
    saves = replace(
        plan.saves, best_interval_seconds=60.0, best_every_steps=9, seconds_over_best=seconds, usd_over_best=usd
    )
    (line,) = (line for line in lines(plan.model_copy(update={"saves": saves})) if line.startswith("Configured:"))
    assert line.endswith(told)


SPAN = "Spot costs 66 % less than on demand: from 0 % less (dearest zone) to 69 % less (cheapest zone)."


@pytest.mark.parametrize(
    ("savings", "told"),
    [
        ((-0.002, 0.66, 0.69), SPAN),
        ((-0.3, -0.1, 0.2), "Spot costs 10 % more than on demand: from 30 % more (dearest zone) to"),
    ],
)
def test_what_spot_saves_is_a_sentence(savings: tuple[float, float, float], told: str) -> None:
    plan = planned(instance_type="p4d.24xlarge", market="spot")
    assert plan.budget is not None
    assert plan.budget.spot is not None
    spot = replace(plan.budget.spot, savings=savings)
    budget = replace(plan.budget, spot=spot)
    (line,) = (line for line in lines(plan.model_copy(update={"budget": budget})) if line.startswith("Spot"))
    assert line.startswith(told)


@pytest.mark.parametrize(("region", "priced"), [("us-east-2", True), ("us-east-1", False)])
def test_beside_the_price_of_a_capacity_block_stands_in_which_lengths_it_is_sold(region: str, priced: bool) -> None:
    told = lines(planned(instance_type="p4d.24xlarge", market="on_demand", region=region))
    assert (BLOCKS in told) == priced
