"""Pairs and rails between hosts of a lab, whose links have the rates of its token buckets."""

import math
import statistics
from typing import Any

import pytest

from convoy.benchmark.results.pairs import BISECTION_WAYS, fit_pair
from convoy.benchmark.results.rails import GROUP, RailsReport, rail_cases, rails_report
from convoy.drills.testbed.lab import CARRIED, Lab
from convoy.drills.testbed.lab_spec import parse_lab
from convoy.network.pairs.measure import time_tasks
from convoy.network.pairs.plan import LATENCY_SIZES, LEAST_LARGEST, WINDOW, WINDOW_SIZES, pair_tasks
from convoy.network.pairs.slow_links import find_slow
from convoy.network.rails.measure import measure_rails
from convoy.network.timing import Meeting
from tests.benchmark.cases import a_case
from tests.campaign import in_full
from tests.network.hosts import on_hosts

pytestmark = [pytest.mark.system, pytest.mark.alone, pytest.mark.timeout(300)]

RATE = 400e6 / 8 * CARRIED

ROUNDS = 6

TRIES = 3
"""On a host so busy that its own work delays short messages by several times what they take."""


def measured(meeting: Meeting, kind: str) -> dict[str, list[list[float]]]:
    """Seconds by round of each size, from small to large, by link."""
    tasks = [task for task in pair_tasks(meeting.hosts, LEAST_LARGEST, 1.0) if task.kind == kind]
    times = time_tasks(tasks, meeting, None, ROUNDS, block_seconds=0.0)
    assert not any(each.wrong for each in times.values())
    return {
        link: [list(times[task].blocks) for task in tasks if task.link == link]
        for link in dict.fromkeys(task.link for task in tasks)
    }


def on_lab(text: str, function: str, *arguments: Any, timeout_seconds: float = 120) -> Any:
    """What the function returns on the first host of a lab."""
    with Lab(parse_lab(text)) as lab:
        return on_hosts(lab, f"{__name__}:{function}", *arguments, timeout_seconds=timeout_seconds)[0]


def test_the_slope_of_a_pair_is_the_rate_of_its_link() -> None:
    (times,) = on_lab("2 hosts, 400mbit", "measured", "half round trip").values()
    sizes = [size for size in LATENCY_SIZES if size <= LEAST_LARGEST]
    model = fit_pair(dict(zip(sizes, times, strict=True)))
    assert model is not None
    assert model.beta.estimate == pytest.approx(RATE, rel=0.05)


@pytest.mark.parametrize("run", range(10 if in_full() else 1))
def test_a_slow_port_of_four_is_named_with_its_direction(run: int) -> None:
    host, direction = run % 4, ("sends", "receives")[run % 2]
    found = on_lab(f"4 hosts, 400mbit, host {host} {direction} 100mbit", "measured", "one way")
    sent = WINDOW_SIZES[0] * WINDOW
    rates = {}
    for link, (times,) in found.items():
        source, target = map(int, link.split("-"))
        rates[source, target] = [sent / each for each in times]
    slow = find_slow(rates)
    assert [(port.host, port.direction) for port in slow.ports] == [(host, direction)], slow.summary
    assert slow.ports[0].share == pytest.approx(0.25, rel=0.1)
    assert not slow.links
    assert not slow.groups


def test_a_trunk_limits_the_bisection() -> None:
    """With cubic, as hosts have it: what acknowledges one direction waits behind the data of the other, and a reno that
    halves its window meanwhile leaves a sixth of both directions unused."""
    for _ in range(TRIES):
        forth, back, both = (rate / (RATE / 2) for rate in bisection("4 hosts, 400mbit, trunk 200mbit, cubic"))
        print(f"of the trunk: {forth:.3f} forth, {back:.3f} back, {both / 2:.3f} of both directions at once")
        if both / 2 > 0.9:
            break
    assert min(forth, back, both / 2) >= 0.9
    assert max(forth, back, both / 2) <= 1.05


def bisection(text: str) -> list[float]:
    """Bytes per second forth, back and both ways at once."""
    found = on_lab(text, "measured", "bisection")
    tasks = {task.link: task for task in pair_tasks(tuple("abcd"), LEAST_LARGEST, 1.0) if task.kind == "bisection"}
    return [tasks[link].bytes / statistics.median(found[link][0]) for link in BISECTION_WAYS]


def rails_of(meeting: Meeting, largest: int) -> list[dict[str, Any]]:
    """Cases of the rails between two hosts, as JSON."""
    result = measure_rails(meeting, (0, 1), largest, ROUNDS)
    assert not result.why_not, result.why_not
    return [
        {"name": name, "samples": found.samples, "values": found.values}
        for name, found in rail_cases(result.rails, result.times).items()
    ]


def rails_in_lab(largest: int) -> RailsReport:
    found = on_lab("2 hosts, 200mbit, 2 rails", "rails_of", largest, timeout_seconds=240)
    report = rails_report([a_case(suite="network", group=GROUP, blocks=(), **each) for each in found])
    assert report is not None
    assert (report.rails, report.wrong) == (2, 0)
    return report


def test_two_rails_carry_twice_as_much_as_one() -> None:
    largest = 2**24 if in_full() else 2**22
    report = rails_in_lab(largest)
    one, many = report.one_buffer[-1], report.many_buffers[-1]
    assert (one.size, many.size) == (largest, largest)
    assert one.split_gain.estimate >= 1.8
    assert 0.95 <= one.round_robin_gain.estimate <= 1.05
    assert many.round_robin_gain.estimate >= 1.8


def test_a_split_begins_to_gain_where_it_is_predicted() -> None:
    for _ in range(TRIES):
        report = rails_in_lab(2**18)
        assert report.crossover is not None
        ratio = report.crossover / (report.predicted_crossover or math.inf)
        print(f"crossover at {report.crossover:.0f} bytes, predicted at {report.predicted_crossover}")
        if 0.5 <= ratio <= 2:
            break
    assert 0.5 <= ratio <= 2


def interfaces_with_one_rail(meeting: Meeting) -> str:
    return measure_rails(meeting, (0, 1), 2**10, 1).why_not


def test_hosts_with_one_interface_have_no_rails() -> None:
    why_not = on_lab("2 hosts", "interfaces_with_one_rail")
    assert why_not == "the two hosts share 1 networks, and rails are at least two (interfaces: eth0)"
