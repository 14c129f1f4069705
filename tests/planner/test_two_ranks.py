"""From one rank, and what two of this host's ranks take for collectives, how long a step of both takes."""

import socket
from pathlib import Path

import pytest

from convoy.planner.step.communication import communication_seconds
from tests.planner import pair
from tests.planner.pair import Meeting, Seen
from tests.planner.workloads import with_more_ranks
from tests.ranks import on_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.alone]

WITHIN = 0.15

ROUNDS = 8


def test_two_ranks_take_what_one_tells(tmp_path: Path) -> None:
    """The one rank computes beside another one on the other core, which it knows nothing of: both share the memory and
    the clock rate of the host, as the two that train together do. Each keeps to a core of its own."""
    config = pair.job_config(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    seen: Seen = on_ranks(
        2, pair.run, Meeting("127.0.0.1", port, "lo"), config, pair.prepared(config), {"together": _nothing}, ROUNDS
    )[0]
    job = pair.workload(config, nodes=1)
    alone, took = seen.alone_seconds, seen.seconds("together")
    planned = with_more_ranks(job, seen.machine, alone, seen.optimizer_seconds)
    sending = communication_seconds(job, seen.machine).total
    print(f"alone {alone:.4f} s (update {seen.optimizer_seconds:.4f} s), sent {sending:.4f} s")
    print(f"predicted {planned:.4f} s, measured {took:.4f} s: {planned / took - 1:+.1%}; {seen.machine}")
    sent = took - (alone - seen.optimizer_seconds / 2)
    print(f"sent: predicted {sending:.4f} s, measured {sent:.4f} s: {sending / sent - 1:+.1%}")
    assert abs(planned / took - 1) <= WITHIN


def _nothing() -> None:
    pass
