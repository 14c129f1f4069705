"""Buffers over rails: every byte is sent once, in balance, over rails that both hosts share."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from convoy.network.interfaces import Interface
from convoy.network.rails.plan import RAIL_MODES, RailMode, RailTask, common_rails, rail_messages, rail_tasks


@given(
    st.sampled_from(RAIL_MODES),
    st.integers(1, 6),
    st.integers(1, 10**6),
    st.integers(1, 8),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_every_byte_is_sent_once(mode: RailMode, buffers: int, size: int, rails: int, source: int, target: int) -> None:
    task = RailTask(mode, buffers, size)
    messages = rail_messages(task, rails, source, target)
    assert [each.start for each in messages] == [0, *(each.stop for each in messages[:-1])]
    assert messages[-1].stop == buffers * size
    assert all(0 <= each.rail < rails and each.start < each.stop for each in messages)


def test_a_split_loads_all_rails_alike_and_round_robin_takes_turns() -> None:
    split = rail_messages(RailTask("split", 1, 1000), 4, 0, 1)
    assert [(each.rail, each.stop - each.start) for each in split] == [(0, 250), (1, 250), (2, 250), (3, 250)]
    turns = [each.rail for each in rail_messages(RailTask("round-robin", 4, 10), 2, 0, 1)]
    assert turns == [1, 0, 1, 0]
    assert {each.rail for each in rail_messages(RailTask("one rail", 4, 10), 2, 0, 1)} == {0}


def test_pairs_of_ranks_spread_over_the_rails_of_a_host() -> None:
    # By the target's number alone, all ranks would send to a target over the same rail.
    rails = Counter(rail_messages(RailTask("round-robin", 1, 10), 4, source, 9)[0].rail for source in range(4))
    assert rails == {0: 1, 1: 1, 2: 1, 3: 1}


def test_tasks_keep_to_the_largest_size_and_send_many_at_both_ends() -> None:
    tasks = rail_tasks(2**20)
    assert max(task.size for task in tasks) == 2**20
    assert {task.size for task in tasks if task.buffers == 4} == {2**6, 2**20}
    assert len({*tasks}) == len(tasks)
    assert {task.size for task in rail_tasks(50)} == {50}


def test_rails_are_networks_that_two_hosts_share() -> None:
    def host(number: int) -> list[Interface]:
        return [
            Interface("docker0", "172.17.0.1", "172.17.0.0/16"),
            Interface("eth0", f"10.0.0.{number}", "10.0.0.0/24"),
            Interface("eth1", f"10.0.1.{number}", "10.0.1.0/24"),
            Interface("own", f"192.168.{number}.1", f"192.168.{number}.0/24"),
        ]

    pairs = common_rails(host(1), host(2))
    assert [(own.address, peer.address) for own, peer in pairs] == [("10.0.0.1", "10.0.0.2"), ("10.0.1.1", "10.0.1.2")]


def test_two_interfaces_on_one_network_are_two_rails() -> None:
    one, other = ([Interface(f"ens{i}", f"10.0.0.{10 * host + i}", "10.0.0.0/24") for i in (1, 2)] for host in (1, 2))
    assert [(own.name, peer.name) for own, peer in common_rails(one, other)] == [("ens1", "ens1"), ("ens2", "ens2")]
