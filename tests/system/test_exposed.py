"""Two machines on a link of a known bandwidth: a step takes as long as the planner says, from fast to slow."""

import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from convoy.config.run import RunConfig
from convoy.drills.testbed.mounts import run_command as command
from convoy.drills.testbed.namespaces import Network
from convoy.planner.step.communication import communication_seconds
from tests.planner import pair
from tests.planner.pair import Meeting, Seen
from tests.planner.workloads import on_link, with_more_ranks
from tests.ranks import on_ranks

pytestmark = [pytest.mark.system, pytest.mark.sampled(2), pytest.mark.timeout(300), pytest.mark.alone]

MEGABITS = (None, 1000, 400, 200, 100)
"""Per second, each way; None: as fast as the kernel is."""

WITHIN = 0.15

MTU = 9001
"""As on EC2. Of smaller frames there are so many that to cut messages into them is itself a part of a step."""

CARRIED = (MTU - 52) / (MTU + 14)
"""Share of a frame that is a message: the headers of Ethernet, IP, and TCP with its timestamps are 14, 20, 32 bytes."""

BURST_BYTES = 32_000
"""That a link sends at once after it had nothing to send: more would make it faster than it is, and a timer that is
late loses what is above it."""

ROUNDS = 4


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(2, MTU) as network:
        yield network


def limit(megabits: int | None) -> None:
    """What this host sends."""
    if megabits is None:
        command("tc", "qdisc", "replace", "dev", "eth0", "root", "pfifo")
        return
    shape = ("rate", f"{megabits}mbit", "burst", str(BURST_BYTES), "limit", str(2**24))
    command("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *shape)


def name(megabits: int | None) -> str:
    return "not limited" if megabits is None else f"{megabits:,} Mbit/s"


def test_a_step_on_a_limited_link_takes_what_is_planned(network: Network, tmp_path: Path) -> None:
    config = pair.job_config(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    meeting = Meeting(network.addresses[0], port, "eth0", tuple(network.command_prefix(host)[3] for host in range(2)))
    settings = {name(megabits): partial(limit, megabits) for megabits in MEGABITS}
    seen: Seen = on_ranks(2, pair.run, meeting, config, pair.prepared(config), settings, ROUNDS)[0]
    wrong = {}
    print(f"alone {seen.alone_seconds:.3f} s, of which {seen.optimizer_seconds:.3f} s are the update; {seen.machine}")
    print(f"{'link':>14} {'sent':>10} {'predicted':>10} {'measured':>10} {'error':>7}")
    for megabits in MEGABITS:
        planned, sending = predicted(config, seen, megabits)
        took = seen.seconds(name(megabits))
        wrong[megabits] = planned / took - 1
        print(f"{name(megabits):>14} {sending:>8.3f} s {planned:>8.3f} s {took:>8.3f} s {wrong[megabits]:>+7.1%}")
    by_bench = {}
    for megabits in MEGABITS[1:]:
        machine = seen.links[name(megabits)].of(seen.machine)
        job = pair.workload(config, nodes=2)
        planned = with_more_ranks(job, machine, seen.alone_seconds, seen.optimizer_seconds)
        by_bench[megabits] = planned / seen.seconds(name(megabits)) - 1
        print(f"{name(megabits):>14} by convoy net bench alone: {planned:>8.3f} s {by_bench[megabits]:>+7.1%}")
    assert all(abs(error) <= WITHIN for error in wrong.values()), wrong
    assert all(abs(error) <= WITHIN for error in by_bench.values()), by_bench


def predicted(config: RunConfig, seen: Seen, megabits: int | None) -> tuple[float, float]:
    """Seconds of a step, and those of them in which ranks send."""
    machine = seen.machine
    assert machine.gather is not None
    assert machine.reduce is not None
    if megabits is not None:
        link = megabits * 1e6 / 8 * CARRIED
        lines = {"gather": on_link(machine.gather, link, 2), "reduce": on_link(machine.reduce, link, 2)}
        machine = machine.model_copy(update=lines)
    job = pair.workload(config, nodes=2)
    sent = communication_seconds(job, machine).total
    return with_more_ranks(job, machine, seen.alone_seconds, seen.optimizer_seconds), sent
