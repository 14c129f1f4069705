"""What tokens cost, reckoned by hand from the catalog's prices."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from convoy.benchmark.analysis.report import CostFigures
from convoy.benchmark.fold import fold_cases
from convoy.benchmark.pages.cost import cost_section
from convoy.benchmark.results.case import Case
from convoy.catalog.prices import SHIPPED, ObservedPrice, PriceBook, PriceList
from convoy.display.page import Table
from tests.benchmark.cases import GPU_CONFIG, GPUS, a_case, replaced, scaling, strategies, throughput


def _costs(cases: list[Case], prices: PriceBook = SHIPPED) -> tuple[CostFigures, ...]:
    return fold_cases(cases, prices=prices).costs


def test_a_million_tokens_cost_the_machines_for_as_long_as_they_take() -> None:
    """Four p4d at 21.9576 USD an hour on demand, 1,048,576 tokens in 1.3 s: 0.0302 USD."""
    (cost,) = _costs(strategies())
    assert (cost.case, cost.machines, cost.region) == ("strategies-gpt-1b-fsdp", "4 × p4d.24xlarge", "us-east-1")
    demand, reserved, spot = cost.offers
    assert (demand.market, reserved.market, spot.market) == ("on_demand", "reserved", "spot")
    assert reserved.usd_per_hour == pytest.approx(4 * 13.9211)
    assert demand.usd_per_hour == pytest.approx(4 * 21.9576)
    expected = 4 * 21.9576 / 3600 * 1.3 / 1.048576
    assert demand.usd_per_million_tokens.estimate == pytest.approx(expected, rel=0.02)
    assert demand.usd_per_million_tokens.low < expected < demand.usd_per_million_tokens.high
    assert (spot.low_usd_per_hour, spot.high_usd_per_hour) == (4 * 6.53, 4 * 13.99)
    assert spot.usd_per_hour == pytest.approx(4 * (8.01 + 11.79) / 2)
    assert (demand.price_date, demand.source[:14]) == (date(2026, 11, 9), "AWS price list")


def test_a_case_that_computes_something_else_is_not_what_is_costed() -> None:
    wrong = a_case("fast", 0.1, losses=(1.0,), baseline="ours", seed=9)
    (cost,) = _costs([throughput()[0], wrong])
    assert cost.case == "throughput-a1-ours"


def test_a_model_that_was_changed_so_that_it_can_be_cut_is_not_costed() -> None:
    cut = replaced(strategies()[1], group="gpt-1b-model-parallel", model="gpt-1b, cut")
    (cost,) = _costs([*strategies(), cut])
    assert cost.model == "gpt-1b"


def on_spot(cases: list[Case]) -> list[Case]:
    cluster = {"region": "us-east-1", "market": "spot"}
    return [replaced(case, config={**GPU_CONFIG, "cluster": cluster}) for case in cases]


def test_independent_jobs_are_no_training_of_one_model() -> None:
    (cost,) = _costs(scaling())
    assert cost.case == "scaling-n2-weak"


def test_a_newer_price_that_was_refreshed_counts() -> None:
    row = ObservedPrice(
        instance="p4d.24xlarge",
        market="spot",
        region="us-east-1",
        usd_per_hour=(5.0,),
        date=date(2026, 11, 21),
        source="DescribeSpotPriceHistory",
    )
    refreshed = PriceList(refreshed=datetime(2026, 11, 21, tzinfo=UTC), prices=(row,))
    (cost,) = _costs(strategies(), PriceBook(refreshed))
    assert cost.offers[-1].usd_per_hour == 20.0
    assert cost.offers[-1].source == "DescribeSpotPriceHistory"


ON_DEMAND = {"usd_per_hour_on_demand": 15.0}
RESERVED = ("reserved", 13.9211)


@pytest.mark.parametrize(
    ("market", "more", "expected"),
    [
        ("spot", {}, [("on_demand", 21.9576), RESERVED, ("spot", 7.5)]),
        ("capacity_block", {}, [("on_demand", 21.9576), RESERVED, ("spot", 9.9), ("capacity_block", 7.5)]),
        ("spot", {**ON_DEMAND, "on_demand_date": "2026-01-01"}, [("on_demand", 15.0), RESERVED, ("spot", 7.5)]),
        (
            "spot",
            ON_DEMAND,
            [("on_demand", 21.9576), RESERVED, ("spot", 7.5)],
        ),  # without a day, as older results have it
    ],
)
def test_a_price_of_ones_own_stands_for_its_market(
    market: str, more: dict[str, Any], expected: list[tuple[str, float]]
) -> None:
    own = {"usd_per_hour": 7.5, "date": "2026-01-01", "source": "our contract", **more}
    config = {**GPU_CONFIG, "cluster": {"region": "us-east-1", "market": market, "price": own}}
    (cost,) = _costs([replaced(case, config=config) for case in strategies()])
    assert [(offer.market, offer.usd_per_hour / 4) for offer in cost.offers] == [
        (name, pytest.approx(usd)) for name, usd in expected
    ]
    assert cost.offers[-1].source == "our contract"


def test_the_baseline_of_the_same_machines_stands_next_to_the_fastest_case() -> None:
    """At half the rate it takes twice as long, and costs twice as much, in each market; p5 has no reserved price."""
    gpus = [replaced(case, hardware=GPUS, config=GPU_CONFIG) for case in throughput()]
    (cost,) = _costs(gpus)
    assert cost.baseline is not None
    assert cost.baseline.case == "throughput-a1-baseline"
    assert cost.tokens_per_second.estimate == pytest.approx(2 * cost.baseline.tokens_per_second.estimate, rel=0.03)
    table = training_table(gpus)
    assert [(row["Case"][14:], row["Tokens"]) for row in table] == [
        (case, tokens) for tokens in ("100 B", "500 B", "1.00 T") for case in ("baseline", table[1]["Case"][14:])
    ]
    first, second = table[:2]
    for market, usd in (("on-demand", 21.9576), ("reserved", 13.9211), ("spot", 9.9)):
        hours = 100e9 / cost.baseline.tokens_per_second.estimate / 3600
        assert dollars(first[f"USD {market}"]) == pytest.approx(hours * 4 * usd, abs=1)
        assert dollars(second[f"USD {market}"]) == pytest.approx(hours * 2 * usd, rel=0.03)
    p5 = [replaced(case, hardware=replaced(GPUS, instance_type="p5.48xlarge")) for case in gpus]
    assert {row["USD reserved"] for row in training_table(p5)} == {"not known"}


def dollars(cell: str) -> float:
    return float(cell.replace(",", ""))


def training_table(cases: list[Case]) -> list[dict[str, str]]:
    """Rows of the last table of the section, by the titles of their columns."""
    table = cost_section(fold_cases(cases))[-1]
    assert isinstance(table, Table)
    return [dict(zip(table.headers, row, strict=True)) for row in table.rows]


def test_why_there_is_no_cost_is_told() -> None:
    (local,) = _costs(throughput())
    assert not local.offers
    assert local.why == "AMD EPYC 7R13 has no price because its instance type is not configured (cluster.instance_type)"
    far = {**GPU_CONFIG, "cluster": {"region": "af-south-1"}}
    (nowhere,) = _costs([a_case(hardware=GPUS, config=far)])
    assert nowhere.why == "no price of p4d.24xlarge in af-south-1 is known"
    (silent,) = _costs([a_case(hardware=GPUS, config={})])
    assert silent.why.startswith("the results do not name the region")


def test_what_was_not_measured_costs_nothing() -> None:
    assert _costs([a_case(status="failed", blocks=()), a_case("none", tokens_per_step=0)]) == ()
