"""Sections on pairs, rails, one-sided transfers and transports."""

from convoy.benchmark.analysis.network import network_report
from convoy.benchmark.page import benchmark_page
from convoy.benchmark.pages.network import network_page
from convoy.benchmark.pages.network_links import matrix
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.network import seconds_name
from convoy.benchmark.results.pairs import PairFigures
from convoy.benchmark.results.transports import (
    COPIES_GROUP,
    LOST_PACKETS,
    ONE_SIDED_GROUP,
    PACKETS,
    RATE,
    TRANSPORTS_GROUP,
    WRONG,
)
from convoy.display.page import Callout, Table, Text
from convoy.network.pairs.slow_links import SlowFinding, SlowPort
from convoy.stats.interval import Interval
from tests.benchmark.cases import replaced
from tests.benchmark.network_cases import network_case
from tests.benchmark.reading import below
from tests.benchmark.results.test_rails import cases as rail_cases_of_two_rails

LINK = 100e6
"""Bytes per second of the link of `network_case`."""


def transport(name: str, group: str, rate: float, **values: float) -> list[Case]:
    samples = {RATE: (rate,) * 6} if group == TRANSPORTS_GROUP else {seconds_name(2**20): (2**20 / rate,) * 6}
    return [network_case(name=name, line=(1e-3, 1e6), group=group, samples=samples, values=values, baseline=None)]


def test_transports_are_shown_with_their_share_and_what_was_lost() -> None:
    cases = transport("iperf3, UDP", TRANSPORTS_GROUP, 0.8 * LINK, **{PACKETS: 1000.0, LOST_PACKETS: 7.0})
    page = benchmark_page([network_case(), *cases])
    (table,) = below(page, "Network: transports", Table)
    (row,) = table.rows
    assert row[0] == "iperf3, UDP"
    assert "80.0 %" in row
    assert "7 of 1,000" in row


def test_what_is_faster_than_the_link_did_not_go_over_it() -> None:
    report = network_report([network_case(), *transport("UCX, WRITE, window", ONE_SIDED_GROUP, 3 * LINK)])
    assert report is not None
    assert report.is_wrong
    titles = [each.title for each in network_page(report).blocks if isinstance(each, Callout)]
    assert "Bound wrong, or a burst" in titles


def test_a_tool_that_measured_small_messages_only_says_so() -> None:
    name, sizes = "fi_pingpong, tcp", {seconds_name(1): (0.005,) * 6}
    case = network_case(name=name, line=(1, 1), group=TRANSPORTS_GROUP, samples=sizes, values={}, baseline=None,
                        not_measured={"larger sizes": "did not finish within 5 s"})  # fmt: skip
    texts = [each.text for each in below(benchmark_page([case]), "Network: transports", Text)]
    assert "Not measured: fi_pingpong, tcp, larger sizes: did not finish within 5 s." in texts
    (table,) = below(benchmark_page([case]), "Network: transports", Table)
    assert table.rows == ((name, "1 B in 5.00 ms, up to 1 B", "200 B/s (200 to 200)", "< 0.001 %"),)
    report = network_report([case])
    said = [each.text for each in network_page(report).blocks if isinstance(each, Text)]
    assert sum("did not finish" in text for text in said) == 1


def test_the_backend_that_all_transfers_share_is_named_once() -> None:
    cases = [
        transport(f"UCX over tcp, {name}", ONE_SIDED_GROUP, 1e6)[0] for name in ("READ, blocking", "WRITE, window")
    ]
    page = benchmark_page(cases)
    assert "Backend of NIXL: UCX over tcp." in below(page, "Network: one-sided transfers", Text)[0].text
    (table,) = below(page, "Network: one-sided transfers", Table)
    assert [row[0] for row in table.rows] == ["READ, blocking", "WRITE, window"]


def test_the_rates_of_a_slow_port_are_marked_in_the_matrix() -> None:
    slow = SlowFinding(ports=(SlowPort(host=1, direction="sends", share=0.25),), hosts=3)
    table = matrix([pair(0, 1), pair(0, 2), pair(1, 2)], slow)
    assert table.rows == (
        ("0", "", "1.00 MB/s", "1.00 MB/s"),
        ("1", "1.00 MB/s ▲", "", "1.00 MB/s ▲"),
        ("2", "1.00 MB/s", "1.00 MB/s", ""),
    )


def pair(first: int, second: int) -> PairFigures:
    rate = Interval(estimate=1e6, low=1e6, high=1e6, n=6)
    return PairFigures(first=first, second=second, hosts=(first, second), latency=None, link=None, forth=rate,
                       back=rate, both=None, messages_forth=None, messages_back=None, wrong=0)  # fmt: skip


def test_what_could_not_be_measured_is_named_with_its_reason() -> None:
    missing = network_case(
        name="ib_write_bw, RDMA",
        line=(1, 1),
        group=TRANSPORTS_GROUP,
        samples={},
        values={},
        not_measured={"x": "no adapter"},
    )
    texts = [each.text for each in below(benchmark_page([missing]), "Network: transports", Text)]
    assert "Not measured: ib_write_bw, RDMA: no adapter." in texts


def test_communicators_of_nccl_are_not_called_rails() -> None:
    cases = [replaced(case, values={**case.values, "communicators": 1.0}) for case in rail_cases_of_two_rails()]
    texts = " ".join(each.text for each in below(benchmark_page(cases), "Network: rails", Text))
    assert "over 2 communicators of NCCL, which chooses the adapters of each, pays from" in texts


def test_copies_within_a_host_are_shown_without_a_share_of_the_link() -> None:
    cases = transport("pinned, GPU to host", COPIES_GROUP, 30 * LINK, **{f"{WRONG}.{2**20}": 3.0})
    report = network_report([network_case(), *cases])
    assert report is not None
    assert report.links is not None
    assert report.links.above_rate == ()
    assert report.is_wrong  # three bytes were
    (table,) = below(network_page(report), "Network: copies between host and GPU", Table)
    assert table.rows == (
        ("pinned, GPU to host", "1 MiB", "0.350 ms (0.350 to 0.350)", "3.00 GB/s (3.00 to 3.00)", "3"),
    )


def test_rails_say_from_which_size_a_split_pays() -> None:
    page = benchmark_page(rail_cases_of_two_rails())
    texts = " ".join(each.text for each in below(page, "Network: rails", Text))
    assert "Splitting one buffer over 2 rails pays from" in texts
    (table,) = below(page, "Network: rails", Table)
    assert table.rows[-1][0] == "4"
