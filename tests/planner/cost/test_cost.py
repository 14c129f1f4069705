"""What a campaign costs, reckoned by hand, and against gangs that are simulated event by event."""

from dataclasses import replace
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.catalog.prices import Market, Price, price_over_zones
from convoy.config.cluster import FileSystemConfig
from convoy.planner.cost.campaign import Campaign
from convoy.planner.cost.cost import StoredCheckpoints, campaign_cost, puts_and_gets_of_a_save, storage_usage
from convoy.planner.cost.failures import RestartCost, SaveCost
from convoy.planner.pages.plan import first_warning, plan_in_one_line, plan_summary
from convoy.planner.plan_schema import Plan
from convoy.storage import open_store
from convoy.storage.usage import request_counter
from tests.campaign import examples
from tests.planner.cost.test_campaign import GANGS, NODES, Case, both
from tests.planner.test_plan import PRESETS, planned

pytestmark = pytest.mark.campaign

HOUR = 3600.0
STORED = StoredCheckpoints("s3://bucket/jobs", "us-east-1", 2.0**30, writers=2, checkpoints=3)


def priced(usd_per_hour: float, market: Market = "on_demand") -> Price:
    return price_over_zones("p4d.24xlarge", market, "us-east-1", [usd_per_hour], date(2026, 11, 23), "a test")


def a_campaign(**hours: float) -> Campaign:
    told = {
        "productive": 10.0, "stalled": 0.0, "recomputed": 0.0, "draining": 0.0, "waiting": 0.0, "restarting": 0.0
    }  # fmt: skip
    return Campaign(**{name: n * HOUR for name, n in (told | hours).items()}, interruptions=2.0, saves=100.0)


def test_machines_are_paid_for_what_they_do_and_a_lost_one_is_not() -> None:
    """Four at 21.9576 USD an hour: 10 h of work 878.304, an hour of waiting for one of them 3 × 21.9576 = 65.8728; the
    cent that is left of 944.1768 goes to the part that lost most."""
    found = campaign_cost(a_campaign(waiting=1.0), 4, priced(21.9576))
    assert (found.machines["productive"], found.machines["waiting"]) == (878.31, 65.87)
    assert found.usd == 944.18
    assert found.not_counted == ("checkpoints",)


def test_a_capacity_block_is_paid_in_whole_days() -> None:
    """30 hours are two days: 2 × 24 × 39.33 = 1,887.84, of which 18 h are not used; machines that wait are paid too."""
    found = campaign_cost(a_campaign(productive=29.0, waiting=1.0), 1, priced(39.33, "capacity_block"))
    assert found.usd == 1887.84
    assert found.machines["unused"] == 707.94
    assert found.machines["waiting"] == 39.33


def test_checkpoints_are_stored_and_asked_for() -> None:
    """3 of 1 GB for 730 h: 3 GB-months at 0.023. A save is 2 × 64 chunks of 8 MiB, 2 × (2 for a file + record + mark)
    and commit and mark: 138 PUTs at 0.005 a thousand; read back 2 × (64 + 2) GETs at 0.0004, and 128 by a restart."""
    campaign = a_campaign(productive=730.0)
    found = campaign_cost(campaign, 4, priced(1.0), STORED)
    assert puts_and_gets_of_a_save(STORED) == (138, 132)
    assert [float(n) for _, _, n in storage_usage(campaign, STORED)] == pytest.approx([3.0, 13.8, 13.2 + 0.256])
    assert list(found.services.values()) == [0.07, 0.07, 0.0]
    assert found.usd == 2920.14


def test_a_file_system_is_paid_for_as_long_as_the_training_takes() -> None:
    """2,400 GiB of the class 125 at 0.145 USD for 365 h of a month of 730: 174 USD; of 250 the price is not known."""
    folder = replace(STORED, root="/fsx/jobs", file_system=FileSystemConfig(gib=2400, mb_per_second_per_tib=125))
    found = campaign_cost(a_campaign(productive=365.0), 1, priced(1.0), folder)
    assert found.services == {"FSx for Lustre, 2,400 GiB with 125 MB/s a TiB": 174.0}
    assert (found.usd, found.not_counted) == (365.0 + 174.0, ())
    faster = campaign_cost(a_campaign(), 1, priced(1.0), replace(folder, file_system=FileSystemConfig(gib=2400)))
    assert (faster.services, len(faster.not_counted)) == ({}, 1)
    assert "250 MB/s a TiB: the catalog has no price" in faster.not_counted[0]


def test_what_is_not_verified_is_not_read_back() -> None:
    assert puts_and_gets_of_a_save(replace(STORED, verified=False)) == (135, 0)


def test_a_file_is_sent_in_as_many_requests_as_are_counted(s3_uri: str) -> None:
    """Of one writer, without its record, the marks and the commit: 20 MiB are 3 chunks."""
    request_counter().take()
    open_store(s3_uri).put("shards/a", memoryview(bytes(20 * 2**20)), 8 * 2**20)
    [found] = request_counter().take()
    puts, _ = puts_and_gets_of_a_save(
        StoredCheckpoints(s3_uri, "us-east-1", 20 * 2**20, writers=1, checkpoints=1, verified=False)
    )
    assert puts == found.puts + 2


def test_what_has_no_price_is_told() -> None:
    found = campaign_cost(a_campaign(), 4, priced(1.0), replace(STORED, region="af-south-1"))
    assert found.services == {}
    assert found.not_counted[0] == "checkpoints: the catalog has no price of it in af-south-1"
    folder = campaign_cost(a_campaign(), 4, priced(1.0), replace(STORED, root="/fsx/jobs"))
    assert folder.not_counted == ("file systems, which are paid for by what is provisioned",)
    google = campaign_cost(a_campaign(), 4, priced(1.0), replace(STORED, root="gs://bucket/jobs"))
    assert google.services == {}
    assert google.not_counted == (
        "checkpoints in the bucket and requests to it: the catalog has no prices of Google's",
    )


def test_spot_costs_what_was_simulated() -> None:
    """What interruptions and saves add to the cost of the work, by the machine-seconds that were there."""
    case = Case(saving=SaveCost(1.0, 31.0), restart=RestartCost(45.0, 300.0), announced=0.5, notice=60.0, write=15.0)
    expected, simulated = both(case, GANGS)
    found = campaign_cost(expected, NODES, priced(3600.0))  # a dollar for each machine and second
    work = simulated.productive * NODES
    assert found.usd - work == pytest.approx(simulated.machine_seconds - work, rel=0.02)


SECONDS = st.floats(0.0, 1e8)
CAMPAIGNS = st.builds(Campaign, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, st.floats(0.0, 1e4))
MARKETS: st.SearchStrategy[Market] = st.sampled_from(["on_demand", "spot", "capacity_block"])


@given(CAMPAIGNS, st.integers(1, 64), st.floats(0.01, 200.0), MARKETS, st.integers(1, 512), st.floats(0.0, 1e13))
@examples(100)
def test_costs_add_up_to_the_cent(
    campaign: Campaign, nodes: int, usd: float, market: Market, writers: int, state: float
) -> None:
    stored = StoredCheckpoints("s3://bucket", "us-west-2", state, writers, checkpoints=4)
    found = campaign_cost(campaign, nodes, priced(usd, market), stored)
    machines, services = ([Decimal(str(usd)) for usd in each.values()] for each in (found.machines, found.services))
    assert Decimal(str(found.usd)) == sum(machines) + sum(services)
    assert all(part >= 0 and part == part.quantize(Decimal("0.01")) for part in machines)
    if market != "capacity_block":
        paid = nodes * Fraction(campaign.seconds) - Fraction(campaign.waiting)
        exact = paid * Fraction(str(usd)) / 3600
        assert float(sum(machines)) == pytest.approx(float(exact), rel=1e-9, abs=0.005)


def gang_hours(plan: Plan) -> float:
    assert plan.configured_market is not None
    return (plan.configured_market.seconds - plan.configured_market.parts["waiting"]) / 3600


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
    line = plan_summary(plan)["ends before its last step"]
    assert line in plan_in_one_line(plan)
    assert line.startswith("budget.max_hours = 503 is reached after about 77.2 B of 260 B tokens")


def test_who_starts_a_run_that_its_budget_ends_is_warned_of_that_unless_it_does_not_even_fit() -> None:
    stopped, without_room = planned("gpt-7b-p4d", "budget.max_hours=100"), planned("llama-13b-p5", "cluster.nodes=1")
    assert first_warning(stopped) == f"ends before its last step: {plan_summary(stopped)['ends before its last step']}"
    told = first_warning(without_room)
    assert told is not None
    assert told.startswith("does not fit")


def test_the_limit_that_is_reached_first_is_told() -> None:
    whole = planned("gpt-7b-p4d", "budget.max_cost_usd=null")
    assert whole.configured_market is not None
    assert whole.configured_market.cost is not None
    usd = gang_hours(whole) * 4 * whole.configured_market.cost.usd_per_hour
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
