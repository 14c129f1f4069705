"""Slow ports and links are named from the rates of all pairs, and nothing is named where nothing is slow."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.network.pairs.slow_links import Direction, find_slow

HOSTS = st.integers(3, 16)
SEEDS = st.integers(0, 10**6)
SHARES = st.floats(0.05, 0.6)


def rates_of(
    hosts: int, seed: int, limits: dict[tuple[int, int], float] | None = None, *, noise: float = 0.05, rounds: int = 8
) -> dict[tuple[int, int], list[float]]:
    """50 MB/s everywhere but for limits in shares of it, with noise, and one round in eight far too slow."""
    draw = random.Random(seed)
    return {
        (a, b): [
            50e6
            * (limits or {}).get((a, b), 1.0)
            * (1 + noise * draw.uniform(-1, 1))
            * (0.3 if draw.random() < 1 / 8 and i % 4 == 0 else 1)
            for i in range(rounds)
        ]
        for a in range(hosts)
        for b in range(hosts)
        if a != b
    }


def port_limits(hosts: int, host: int, direction: Direction, share: float) -> dict[tuple[int, int], float]:
    others = [other for other in range(hosts) if other != host]
    return {(host, other) if direction == "sends" else (other, host): share for other in others}


@given(HOSTS, SEEDS)
def test_equal_links_have_no_slow_port(hosts: int, seed: int) -> None:
    assert not find_slow(rates_of(hosts, seed)).is_slow


@given(HOSTS, SEEDS, SHARES, st.sampled_from(["sends", "receives"]))
def test_a_planted_slow_port_is_named_with_its_direction(
    hosts: int, seed: int, share: float, direction: Direction
) -> None:
    host = seed % hosts
    found = find_slow(rates_of(hosts, seed, port_limits(hosts, host, direction, share)))
    assert [(port.host, port.direction) for port in found.ports] == [(host, direction)]
    assert found.ports[0].share == pytest.approx(share, rel=0.1)
    assert not found.links
    assert not found.groups


@given(HOSTS, SEEDS, SHARES)
def test_a_host_slow_both_ways_has_two_slow_ports(hosts: int, seed: int, share: float) -> None:
    host = seed % hosts
    limits = port_limits(hosts, host, "sends", share) | port_limits(hosts, host, "receives", share)
    found = find_slow(rates_of(hosts, seed, limits))
    assert {(port.host, port.direction) for port in found.ports} == {(host, "sends"), (host, "receives")}
    assert not found.links


@given(HOSTS, SEEDS, SHARES)
def test_a_slow_sender_and_a_slow_receiver_are_both_named(hosts: int, seed: int, share: float) -> None:
    sender, receiver = seed % hosts, (seed + 1) % hosts
    limits = port_limits(hosts, sender, "sends", share) | port_limits(hosts, receiver, "receives", share)
    found = find_slow(rates_of(hosts, seed, limits))
    assert {(port.host, port.direction) for port in found.ports} == {(sender, "sends"), (receiver, "receives")}


@given(HOSTS, SEEDS, SHARES)
def test_a_single_slow_link_is_no_slow_port(hosts: int, seed: int, share: float) -> None:
    link = seed % hosts, (seed + 1) % hosts
    found = find_slow(rates_of(hosts, seed, {link: share}))
    assert [(slow.source, slow.target) for slow in found.links] == [link]
    assert not found.ports


@given(st.integers(2, 8), st.integers(2, 8), SEEDS, SHARES)
def test_hosts_on_either_side_of_a_slow_trunk_are_two_groups(left: int, right: int, seed: int, share: float) -> None:
    hosts = left + right
    across = {(a, b): share for a in range(hosts) for b in range(hosts) if (a < left) != (b < left)}
    found = find_slow(rates_of(hosts, seed, across))
    assert found.groups == (tuple(range(left)), tuple(range(left, hosts)))
    assert not found.ports
    assert not found.links
    assert "groups" in found.summary


def test_two_hosts_show_a_slower_direction_and_not_whose_fault_it_is() -> None:
    found = find_slow(rates_of(2, 0, {(0, 1): 0.25}))
    assert not found.ports
    assert [(slow.source, slow.target) for slow in found.links] == [(0, 1)]
    assert "do not show whether host 0 sends slowly, host 1 receives slowly" in found.summary


def test_two_hosts_that_are_alike_may_both_be_slow() -> None:
    found = find_slow(rates_of(2, 0, {(0, 1): 0.25, (1, 0): 0.25}))
    assert not found.is_slow
    assert "cannot be seen between two hosts" in found.summary


def test_few_rounds_name_a_slow_port_only_if_all_of_them_are_slow() -> None:
    limits = port_limits(4, 2, "sends", 0.25)
    rates = rates_of(4, 0, limits, rounds=3)
    assert find_slow(rates).ports[0].host == 2
    rates[2, 0][0] = 50e6
    assert not find_slow(rates).ports


def test_no_rates_are_no_finding() -> None:
    assert not find_slow({}).is_slow


def test_a_summary_names_host_and_direction() -> None:
    found = find_slow(rates_of(4, 0, port_limits(4, 1, "receives", 0.25), noise=0.0))
    assert found.summary == "host 1 receives at 0.25 of the others' rate"
    assert find_slow(rates_of(4, 0)).summary == "no port and no link is slower than the others"
