"""What a job has cost, against cases worked out by hand; and the parts are the total, to the cent."""

import re
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from fractions import Fraction
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from convoy.display.page import Heading, Table, Text, Value
from convoy.display.terminal import show
from convoy.job.events.registry import (
    CheckpointCopied,
    CheckpointSaved,
    CheckpointsPruned,
    Event,
    FileSystemRent,
    GenerationEnded,
    GenerationStarted,
    NoticeReceived,
    RankThroughput,
    Rent,
    StepDone,
    StoreRequests,
    WorkerReady,
)
from convoy.report.analysis.cost import Cost
from convoy.report.fold import fold
from convoy.report.pages.train import final_page
from tests.campaign import examples
from tests.report import naive
from tests.report.analysis.test_incidents import HAPPENINGS, disturbed
from tests.report.synthetic import CONFIG, Log, finished_job, value

pytestmark = pytest.mark.campaign

SPOT = Rent(
    instance="p4d.24xlarge", market="spot", region="us-east-1", usd_per_hour=9.0, price_date=date(2026, 7, 9),
    source="list A", usd_per_hour_on_demand=21.6, on_demand_date=date(2026, 7, 1), on_demand_source="list C",
)  # fmt: skip
ON_DEMAND = SPOT.model_copy(update={"market": "on_demand", "usd_per_hour": 21.6, "source": "list B"})
UNKNOWN = SPOT.model_copy(update={"instance": "p9.48xlarge", "usd_per_hour": None, "usd_per_hour_on_demand": None})
HOUR = 3600.0
TOKENS = 1_000_000


def cost_of(events: list[Event]) -> Cost:
    found = fold(events, 100).cost
    assert found is not None
    return found


def begin(log: Log, generation: int, rents: Mapping[int, Rent], parent: tuple[int, int] | None = None) -> None:
    """A gang of two nodes forms, and takes half an hour until its first step is done."""
    log.generation = generation
    origin = {} if parent is None else {"parent_generation": parent[0], "parent_step": parent[1]}
    for node in range(2):
        started = GenerationStarted(
            run="TrainFlow/7", attempt=generation, nodes=2, world_size=2, rent=rents.get(node), **origin
        )
        log.add(started, node=node)
    log.wait(0.5 * HOUR)


def hours(log: Log, first: int, last: int) -> None:
    """A step an hour, but for the first one, which is done now."""
    for step in range(first, last + 1):
        if step > first:
            log.wait(HOUR)
        log.add(StepDone(step=step, loss=1, grad_norm=1, lr=1, tokens=TOKENS, seconds=HOUR), rank=0)
        if step == first:
            log.add(WorkerReady(phase="first_step", seconds=1.0), rank=0)


def preempted_job(first: Mapping[int, Rent], second: Mapping[int, Rent]) -> list[Event]:
    """Each node: 0.5 h of start and 4 h of steps, of which 1 h is lost; then 0.5 h and 5 h, and 0.25 h for the end."""
    log = Log()
    begin(log, 0, first)
    hours(log, 1, 5)
    log.add(NoticeReceived(source="imds", notice="end", action="end"), node=1)
    for node in range(2):
        log.add(GenerationEnded(outcome="preempted", step=5), node=node)
    log.wait(100 * HOUR)  # nobody pays for this
    begin(log, 1, second, parent=(0, 4))
    hours(log, 5, 10)
    log.wait(0.25 * HOUR)
    for node in range(2):
        log.add(GenerationEnded(outcome="finished", step=10), node=node)
    return log.events


def test_a_run_that_was_preempted() -> None:
    found = cost_of(preempted_job({0: SPOT, 1: SPOT}, {0: SPOT, 1: SPOT}))

    [machine] = found.machines
    assert (machine.instance, machine.market, machine.usd_per_hour) == ("p4d.24xlarge", "spot", 9.0)
    assert (machine.price_date, machine.source) == (date(2026, 7, 9), "list A")
    assert machine.node_hours == pytest.approx(2 * (0.5 + 4 + 0.5 + 5 + 0.25))
    assert found.split is not None
    assert found.split.productive == Decimal("144.00")  # 2 nodes, 3 + 5 hours, 9 dollars
    assert found.split.recomputed == Decimal("18.00")
    assert found.split.stalled == Decimal("4.50")
    assert found.split.idle == Decimal("18.00")
    assert found.total == Decimal("184.50")
    assert found.tokens == 10 * TOKENS
    assert found.usd_per_million_tokens == pytest.approx(18.45)
    # On demand: 8 productive hours, 0.25 at the end, and one start.
    assert found.on_demand == Decimal("378.00")
    assert found.saved == pytest.approx(1 - 184.5 / 378)
    [instead] = found.on_demand_prices
    assert (instead.usd_per_hour, instead.price_date, instead.source) == (21.6, date(2026, 7, 1), "list C")


def test_what_it_would_have_cost_is_told_with_the_day_and_source_of_its_price_and_never_without() -> None:
    events = preempted_job({0: SPOT, 1: SPOT}, {0: SPOT, 1: SPOT})
    told = [block.text for block in final_page(fold(events, 100), CONFIG).blocks if isinstance(block, Text)]
    assert "On demand: p4d.24xlarge in us-east-1, 21.6 USD an hour (2026-07-01, list C)." in told
    undated = SPOT.model_copy(update={"on_demand_date": None})
    found = cost_of(preempted_job({0: undated, 1: undated}, {0: undated, 1: undated}))
    assert (found.on_demand, found.saved, found.on_demand_prices) == (None, None, ())


def test_two_markets_one_after_the_other() -> None:
    found = cost_of(preempted_job({0: SPOT, 1: SPOT}, {0: ON_DEMAND, 1: ON_DEMAND}))

    spot, on_demand = found.machines
    assert (spot.market, spot.node_hours) == ("spot", pytest.approx(9.0))
    assert (on_demand.market, on_demand.node_hours) == ("on_demand", pytest.approx(11.5))
    assert spot.usd is not None
    assert on_demand.usd is not None
    assert spot.usd.total == Decimal("81.00")
    assert on_demand.usd.total == Decimal("248.40")
    assert found.total == Decimal("329.40")


def test_two_prices_at_once() -> None:
    dear = SPOT.model_copy(update={"usd_per_hour": 10.01})
    found = cost_of(preempted_job({0: SPOT, 1: dear}, {0: SPOT, 1: dear}))

    assert [machine.node_hours for machine in found.machines] == [pytest.approx(10.25)] * 2
    # 10.25 x 9 = 92.25; 10.25 x 10.01 = 102.6025
    assert [machine.usd.total for machine in found.machines if machine.usd] == [Decimal("92.25"), Decimal("102.60")]
    assert found.total == Decimal("194.85")


def test_a_price_that_is_not_known_leaves_no_total_and_is_named() -> None:
    found = cost_of(preempted_job({0: SPOT, 1: SPOT}, {0: UNKNOWN, 1: UNKNOWN}))

    assert (found.total, found.split, found.usd_per_million_tokens, found.on_demand) == (None, None, None, None)
    assert found.lacking == ("the catalog has no spot price of p9.48xlarge in us-east-1",)
    assert [machine.usd is None for machine in found.machines] == [False, True]
    page = final_page(fold(preempted_job({0: SPOT, 1: SPOT}, {0: UNKNOWN, 1: UNKNOWN}), 10), CONFIG)
    why = "not known: the catalog has no spot price of p9.48xlarge in us-east-1"
    assert value(page, "Cost") == Value("Cost", "—", why)


def test_a_local_run_has_no_cost_and_says_so() -> None:
    report = fold(finished_job(), 170)
    assert report.cost is None
    assert value(final_page(report, CONFIG), "Cost").subtitle == "not known: these machines have no price"
    assert Heading("Cost") not in final_page(report, CONFIG).blocks


def test_a_node_whose_log_is_lost_costs_what_the_others_do() -> None:
    whole = cost_of(preempted_job({0: SPOT, 1: SPOT}, {0: SPOT, 1: SPOT}))
    assert cost_of(preempted_job({0: SPOT}, {1: SPOT})) == whole


def test_time_of_which_the_log_does_not_tell_the_machines_leaves_no_total() -> None:
    found = cost_of(preempted_job({}, {0: SPOT, 1: SPOT}))
    assert found.total is None
    assert found.lacking == ("of 9 node-hours the log does not say which machines they were",)


def test_a_save_for_a_notice_is_no_cost_on_demand() -> None:
    """30 minutes of the first generation's end, after the last step, in which it saved."""
    events = preempted_job({0: SPOT, 1: SPOT}, {0: SPOT, 1: SPOT})
    at = next(i for i, e in enumerate(events) if isinstance(e, NoticeReceived))
    later = [e.model_copy(update={"t": e.t + 0.5 * HOUR}) for e in events[at + 1 :]]
    saved = CheckpointSaved(step=5, attempt="a", bytes=1, seconds=0.5 * HOUR, t=later[0].t, rank=0)
    found = cost_of([*events[: at + 1], saved, *later])
    assert found.split is not None
    assert found.split.stalled == Decimal("13.50")
    assert found.on_demand == Decimal("378.00")


def test_waits_in_steps_that_were_lost_are_no_cost_on_demand() -> None:
    """Each rank waited for half of the four hours of steps in the first generation, an hour of which was lost."""
    events = preempted_job({0: SPOT, 1: SPOT}, {0: SPOT, 1: SPOT})
    at = next(i for i, e in enumerate(events) if isinstance(e, NoticeReceived))
    for rank in (0, 1):
        waits = RankThroughput(step=5, tokens=1, seconds=4 * HOUR, waited_seconds=2 * HOUR)
        events.insert(at, waits.model_copy(update={"t": events[at].t, "generation": 0, "rank": rank, "node": rank}))
    found = cost_of(events)
    assert found.split is not None
    assert (found.split.productive, found.split.recomputed) == (Decimal("117.00"), Decimal("9.00"))
    assert found.on_demand == Decimal("378.00")


def test_what_is_bought_on_demand_is_compared_with_nothing() -> None:
    found = cost_of(preempted_job({0: ON_DEMAND, 1: ON_DEMAND}, {0: ON_DEMAND, 1: ON_DEMAND}))
    assert (found.on_demand, found.saved) == (None, None)


def test_checkpoints_in_a_bucket_are_paid_for_as_long_as_they_are_there() -> None:
    log = Log()
    begin(log, 0, {0: SPOT, 1: SPOT})
    hours(log, 1, 2)
    bucket, folder = "s3://b/jobs/j", "/fsx/jobs/j"
    log.add(CheckpointSaved(step=2, attempt="a", bytes=730 * 2**30, tier=bucket, seconds=0.0), rank=0)
    log.add(CheckpointCopied(from_generation=0, step=2, tier=folder, bytes=10**12, seconds=1.0), rank=0)
    log.add(CheckpointCopied(from_generation=0, step=2, tier=bucket, bytes=10**12, seconds=1.0, error="no"), rank=0)
    hours(log, 3, 13)  # 10 hours
    log.add(CheckpointsPruned(tier=bucket, commits=[(0, 2)], bytes=730 * 2**30), rank=0)
    hours(log, 14, 24)

    found = cost_of(log.events)

    [service] = found.services
    assert (service.what, service.unit) == (f"checkpoints in {bucket}", "GB-month")
    assert service.quantity == pytest.approx(10.0)  # 730 GB for 10 of 730 hours
    assert service.usd == Decimal("0.23")
    assert found.split is not None
    assert found.total == found.split.total + Decimal("0.23")
    assert any(line.startswith("file systems, which are paid for by what is provisioned") for line in found.not_counted)


def asking_job(*asked: StoreRequests) -> list[Event]:
    """An hour of steps on two machines in us-east-1, and what their processes asked of buckets."""
    log = Log()
    begin(log, 0, {0: SPOT, 1: SPOT})
    hours(log, 1, 2)
    for each in asked:
        log.add(each, rank=0)
    return log.events


def test_requests_are_paid_by_the_thousand_and_transfer_by_the_region_that_sends() -> None:
    first = StoreRequests(
        bucket="b", region="us-west-2", puts=300_000, gets=2_000_000, sent_bytes=100 * 2**30, received_bytes=50 * 2**30
    )
    found = cost_of(asking_job(first, first.model_copy(update={"puts": 100_000, "gets": 0, "sent_bytes": 0})))
    told = {service.what: (service.quantity, service.usd) for service in found.services}
    assert told == {
        "requests to b: PUT, COPY, POST, LIST": (400.0, Decimal("2.00")),  # at 0.005 USD a thousand
        "requests to b: GET and others": (2000.0, Decimal("0.80")),  # at 0.0004
        "transfer from us-east-1 to us-west-2": (100.0, Decimal("2.00")),  # at 0.02 a GB
        "transfer from us-west-2 to us-east-1": (100.0, Decimal("2.00")),
    }
    assert found.split is not None
    assert found.total == found.split.total + Decimal("6.80")
    assert not any("transfer" in line for line in found.not_counted)


def test_transfer_has_the_price_of_its_pair_of_regions_and_none_within_one() -> None:
    sent = StoreRequests(bucket="b", region="us-east-2", puts=1, sent_bytes=100 * 2**30)
    moved = [each for each in cost_of(asking_job(sent)).services if each.what.startswith("transfer")]
    assert [(each.what, each.usd) for each in moved] == [("transfer from us-east-1 to us-east-2", Decimal("1.00"))]
    near = cost_of(asking_job(sent.model_copy(update={"region": "us-east-1"})))
    assert not any(each.what.startswith("transfer") for each in near.services)


def test_a_file_system_is_paid_for_from_the_first_event_to_the_last() -> None:
    """1,200 GiB at 0.146 USD for 73 h of a month of 730: 17.52 USD, in which the job waits for most of the time."""
    price = {"usd_per_gib_month": 0.146, "price_date": date(2026, 11, 1), "source": "ours"}
    rent = SPOT.model_copy(update={"file_system": FileSystemRent(gib=1200, mb_per_second_per_tib=250, **price)})
    log = Log()
    begin(log, 0, {0: rent, 1: rent})
    log.wait(72.5 * HOUR)
    log.add(GenerationEnded(outcome="finished", step=1), node=0)
    found = cost_of(log.events)
    [service] = found.services
    assert service.what == "FSx for Lustre, 1,200 GiB with 250 MB/s a TiB, 73.0 h"
    assert (service.quantity, service.usd) == (pytest.approx(120.0), Decimal("17.52"))
    assert found.split is not None
    assert found.total == found.split.total + service.usd
    unpriced = rent.model_copy(update={"file_system": FileSystemRent(gib=1200, mb_per_second_per_tib=250)})
    log = Log()
    begin(log, 0, {0: unpriced})
    assert any("FSx for Lustre" in line and "no price" in line for line in cost_of(log.events).not_counted)


LUSTRE = FileSystemRent(
    gib=1200, mb_per_second_per_tib=250, usd_per_gib_month=0.146, price_date=date(2026, 11, 1), source="ours"
)


def test_a_file_system_is_no_part_of_the_comparison_with_on_demand() -> None:
    without = cost_of(preempted_job({0: SPOT, 1: SPOT}, {0: SPOT, 1: SPOT}))
    rent = SPOT.model_copy(update={"file_system": LUSTRE})
    found = cost_of(preempted_job({0: rent, 1: rent}, {0: rent, 1: rent}))
    assert (found.on_demand, found.saved) == (without.on_demand, without.saved)
    assert found.total is not None
    assert without.total is not None
    assert found.file_systems == found.total - without.total > 0


def test_a_file_system_is_paid_for_only_in_generations_that_name_it() -> None:
    """100 h with none, 30 h with one, 50 h with none again and 20 h with a larger one."""
    larger = LUSTRE.model_copy(update={"gib": 2400})
    log = Log()
    for generation, (file_system, hours_) in enumerate([(None, 100), (LUSTRE, 30), (None, 50), (larger, 20)]):
        rent = SPOT.model_copy(update={"file_system": file_system})
        begin(log, generation, {0: rent, 1: rent}, parent=(generation - 1, 0) if generation else None)
        log.wait((hours_ - 0.5) * HOUR)
    log.add(GenerationEnded(outcome="finished", step=1), node=0)
    found = {service.what: service.quantity for service in cost_of(log.events).services}
    assert found == {
        "FSx for Lustre, 1,200 GiB with 250 MB/s a TiB, 30.0 h": pytest.approx(1200 * 30 / 730),
        "FSx for Lustre, 2,400 GiB with 250 MB/s a TiB, 20.0 h": pytest.approx(2400 * 20 / 730),
    }


def test_requests_without_a_price_in_their_region_are_not_counted() -> None:
    near = StoreRequests(bucket="near", region="us-east-1", puts=1)
    found = cost_of(asking_job(near, StoreRequests(bucket="b", region="af-south-1", puts=1200)))
    assert [service.what for service in found.services] == ["requests to near: PUT, COPY, POST, LIST"]
    assert any("requests to b" in line and "no price of it in af-south-1" in line for line in found.not_counted)
    assert any("of processes that were killed" in line for line in found.not_counted)
    placeless = cost_of(asking_job(StoreRequests(bucket="b", puts=1)))
    assert "transfer between us-east-1 and b, if that is in another region" in placeless.not_counted


def test_google_s_storage_and_requests_have_no_price_and_are_named_as_not_counted() -> None:
    log = Log()
    begin(log, 0, {0: SPOT, 1: SPOT})
    hours(log, 1, 2)
    log.add(CheckpointSaved(step=2, attempt="a", bytes=730 * 2**30, tier="gs://b/jobs/j", seconds=0.0), rank=0)
    log.add(StoreRequests(bucket="gs://b", puts=300_000, gets=2_000_000), rank=0)
    hours(log, 3, 13)
    found = cost_of(log.events)
    assert found.services == ()
    assert "storage in and requests to gs://b: the catalog has no prices of Google's" in found.not_counted
    assert not any("file systems" in line or "S3" in line or "transfer" in line for line in found.not_counted)


def test_a_log_of_before_requests_were_counted_says_that_they_are_not() -> None:
    found = cost_of(asking_job())
    assert found.services == ()
    assert "requests to S3, if there were any" in found.not_counted


COUNTS = st.integers(0, 10**7)


@given(
    st.lists(
        st.builds(
            StoreRequests,
            bucket=st.sampled_from("abc"),
            region=st.sampled_from([None, "us-east-1", "us-east-2", "us-west-2", "af-south-1"]),
            puts=COUNTS,
            gets=COUNTS,
            sent_bytes=COUNTS.map(lambda n: n * 10**5),
            received_bytes=COUNTS.map(lambda n: n * 10**5),
        ),
        max_size=6,
    )
)
@examples(60)
def test_whatever_was_asked_the_parts_are_the_total(asked: list[StoreRequests]) -> None:
    found = cost_of(asking_job(*asked))
    assert found.split is not None
    services = sum((service.usd for service in found.services), start=Decimal(0))
    assert found.total == found.split.total + services
    exact = sum(Fraction(service.quantity) * Fraction(str(service.usd_per_unit)) for service in found.services)
    assert abs(Fraction(services) - exact) <= Fraction(501, 100_000)


@given(HAPPENINGS, st.lists(st.sampled_from([SPOT, ON_DEMAND, UNKNOWN]), min_size=1, max_size=4))
@examples(60)
def test_of_any_history_the_parts_are_the_total(happenings: list[tuple[str, int]], rents: list[Rent]) -> None:
    events: list[Event] = [
        e.model_copy(update={"rent": rents[e.generation % len(rents)]}) if isinstance(e, GenerationStarted) else e
        for e in disturbed(happenings).events
    ]
    report = fold(events, 1000)
    found = cost_of(events)
    assert report.goodput is not None
    seconds = sum(node.seconds for node in report.goodput.nodes)
    assert sum(machine.node_hours for machine in found.machines) == pytest.approx(seconds / 3600)
    priced = [machine.usd for machine in found.machines if machine.usd is not None]
    if len(priced) == len(found.machines):
        assert found.split is not None
        for part in ("productive", "recomputed", "measuring", "stalled", "idle"):
            assert getattr(found.split, part) == sum(getattr(usd, part) for usd in priced)
        assert found.total == sum(usd.total for usd in priced)
    else:
        assert found.total is None
        assert found.lacking
    final_page(report, CONFIG)


@given(HAPPENINGS)
@examples(60)
def test_of_any_history_the_money_went_where_a_naive_fold_says(happenings: list[tuple[str, int]]) -> None:
    dear = SPOT.model_copy(update={"usd_per_hour": 9000.0})
    rents = {0: SPOT, 1: dear}
    events: list[Event] = [
        e.model_copy(update={"rent": rents[e.generation % 2]}) if isinstance(e, GenerationStarted) else e
        for e in disturbed(happenings).events
    ]
    report = fold(events, 1000)
    assert report.cost is not None
    assert report.cost.split is not None
    told = naive.usd(events, report.generations, [9.0, 9000.0] * len(report.generations))
    told["stalled"] += told.pop("measuring")
    found = {part: float(usd) for part, usd in report.cost.split.model_dump().items()}
    found["stalled"] += found.pop("measuring")
    assert found == pytest.approx(told, abs=0.05)


def test_the_page_tells_what_it_cost_line_by_line() -> None:
    page = final_page(fold(preempted_job({0: SPOT, 1: SPOT}, {0: ON_DEMAND, 1: ON_DEMAND}), 10), CONFIG)
    spent = value(page, "Cost")
    assert spent.value == "329.40 USD"
    assert spent.subtitle.startswith("32.9 USD per million tokens, 12.9 % less than on demand (378.00 USD)")
    tables = [b for b in page.blocks if isinstance(b, Table) and b.headers[0] == "What"]
    table, uses = (b for b in tables if {"USD", "Productive"} & {*b.headers})
    assert table.rows[0][:4] == ("p4d.24xlarge, spot, us-east-1", "9.00 node-hours", "9 an hour", "81.00 USD")
    assert table.rows[0][-1] == "2026-07-09, list A"
    assert table.rows[-1][0] == uses.rows[-1][0] == "Total"
    assert [row[0] for row in uses.rows[:-1]] == [row[0] for row in table.rows[:-1]]
    out = StringIO()
    show(page, Console(file=out, width=80, force_terminal=False))
    for each in (table, uses):
        assert re.search(f"^{' +'.join(each.headers)} *$", out.getvalue(), re.MULTILINE)  # no heading is cut
