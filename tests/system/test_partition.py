"""A network that really parts: who is cut off is suspected in time on both sides, and short gaps alarm nobody."""

import time
from collections.abc import Callable, Iterator

import pytest

from convoy.drills.testbed.mounts import run_command
from convoy.drills.testbed.namespaces import Network
from convoy.gang.network.failure_detector import MAX_SECONDS
from tests.campaign import times
from tests.gang.agents import Agent, agents, alarms

pytestmark = [pytest.mark.system, pytest.mark.alone]

SEEN_SECONDS = MAX_SECONDS + 3.0
"""However unsteady the beats of a busy machine are. The drills measure how soon it is on one that is idle."""

OUT_SECONDS = 0.8
MAX_SECONDS = 1.0
"""A cable that is out for longer may alarm somebody."""

TRIES = 5
"""On a machine so busy that a short outage becomes a long one."""

HOSTS = 3


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(HOSTS) as network:
        yield network


@pytest.fixture
def gang(network: Network) -> Iterator[list[Agent]]:
    prefixes = [network.command_prefix(host) for host in range(HOSTS)]
    with agents(HOSTS, network.addresses[0], prefixes) as gang:
        yield gang


def timed(fault: Callable[[], object]) -> float:
    """When it had happened, of time.monotonic()."""
    fault()
    return time.monotonic()


@pytest.mark.parametrize("cut_off", range(HOSTS))
def test_a_node_that_is_cut_off_and_the_others_suspect_each_other(
    network: Network, gang: list[Agent], cut_off: int
) -> None:
    cut = timed(lambda: network.unplug(cut_off))
    others = [agent for agent in gang if agent.node != cut_off]
    seen = [agent.await_one("PeerSilent", node=cut_off) for agent in others]
    seen += [gang[cut_off].await_one("PeerSilent", node=other.node) for other in others]
    print("silent after", sorted(round(silent.at - cut, 2) for silent in seen), "s")
    assert all(0.6 < silent.at - cut < SEEN_SECONDS for silent in seen), seen
    for agent in others:
        assert [silent.fields["node"] for silent in agent.of("PeerSilent")] == [cut_off]


def test_when_only_one_direction_is_lost_both_ends_know_and_the_third_too(network: Network, gang: list[Agent]) -> None:
    zero, muted, third = gang
    blackhole = ("route", "add", "blackhole", f"{network.addresses[0]}/32")
    cut = timed(lambda: run_command("ip", "-n", network.namespace_name(1), *blackhole))
    assert zero.await_one("PeerSilent", node=1).at - cut < SEEN_SECONDS
    assert muted.await_one("PeerReportedSilent", node=1, by=0).at - cut < SEEN_SECONDS
    assert third.await_one("PeerReportedSilent", node=1, by=0).at - cut < SEEN_SECONDS
    assert third.of("PeerSilent") == []


def test_a_cable_that_is_out_for_most_of_a_second_alarms_nobody(network: Network) -> None:
    prefixes = [network.command_prefix(host) for host in range(HOSTS)]
    for _ in range(TRIES):
        with agents(HOSTS, network.addresses[0], prefixes) as gang:
            longest = max(out(network, number % HOSTS) for number in range(times(5)))
            seen = alarms(gang)
        if not seen or longest <= MAX_SECONDS:
            break
    assert seen == [], f"the longest outage was {longest:.2f} s"


def out(network: Network, host: int) -> float:
    """Pull its cable, for so many seconds as it turns out."""
    began = time.monotonic()
    network.unplug(host)
    time.sleep(OUT_SECONDS)
    network.plug(host)
    took = time.monotonic() - began
    time.sleep(2.0)
    return took


def test_a_partition_that_heals_is_told_to_both_sides(network: Network, gang: list[Agent]) -> None:
    network.unplug(1)
    for agent in gang:
        agent.await_one("PeerSilent")
    time.sleep(1.0)
    healed = timed(lambda: network.plug(1))
    gang[1].await_one("PeerReportedSilent", since=healed, node=1, by=0)
    gang[1].await_one("PeerReportedSilent", since=healed, node=1, by=2)
    gang[0].send(None, {"still": "connected"})
    gang[1].await_one("PayloadReceived", node=0)
