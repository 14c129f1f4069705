"""Two networks of which one is slow: the same training in gangs that take turns tells them apart."""

import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from convoy.benchmark.page import benchmark_page
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.figures import speedup
from convoy.benchmark.results.files import read_cases
from convoy.display.markdown import to_markdown
from convoy.drills.testbed.mounts import run_command

pytestmark = [pytest.mark.system, pytest.mark.sampled(2), pytest.mark.timeout(900), pytest.mark.alone]

REPOSITORY = Path(__file__).resolve().parents[2]

FAST, SLOW = "10.78.1.1", "10.78.2.1"

CONFIG = """
suites: [sync]
models: [tiny]
measure: {rounds: 6, block_steps: 1, block_seconds: 0.001, warm_up_most: 16}
sync:
  share: false
  environments:
    - {name: slow, set: {GLOO_SOCKET_IFNAME: slow}}
    - {name: fast, set: {GLOO_SOCKET_IFNAME: fast}}
run:
  model: {d_model: 48, n_layers: 2, n_heads: 3, vocab_size: 257, max_sequence_length: 32}
  data: {corpus: {kind: synthetic, tokens: 6000, vocab_size: 257}, sequence_length: 16}
  train: {param_dtype: fp32, global_batch: 2, micro_batch: 1}
  cluster: {nodes: 1, nproc_per_node: 2}
"""


@pytest.fixture
def host() -> Iterator[Sequence[str]]:
    """What runs a command on a host with two interfaces, of which one carries 40 Mbit/s. What goes to an address of the
    host itself goes over its loopback, so that is where it is held up."""
    name = f"convoy-{uuid.uuid4().hex[:8]}"
    run_command("ip", "netns", "add", name)
    inside = ("ip", "netns", "exec", name)
    try:
        run_command(*inside, "ip", "link", "set", "lo", "up")
        for interface, address in (("fast", FAST), ("slow", SLOW)):
            run_command(*inside, "ip", "link", "add", interface, "type", "veth", "peer", "name", f"{interface}-peer")
            run_command(*inside, "ip", "addr", "add", f"{address}/24", "dev", interface)
            run_command(*inside, "ip", "link", "set", interface, "up")
            run_command(*inside, "ip", "link", "set", f"{interface}-peer", "up")
        for rule in (
            "qdisc add dev lo root handle 1: htb default 1",
            "class add dev lo parent 1: classid 1:1 htb rate 40gbit",
            "class add dev lo parent 1: classid 1:2 htb rate 40mbit burst 64k",
            f"filter add dev lo parent 1: protocol ip u32 match ip dst {SLOW}/32 flowid 1:2",
        ):
            run_command(*inside, "tc", *rule.split())
        yield inside
    finally:
        run_command("ip", "netns", "delete", name)


def test_gangs_in_two_environments_tell_which_network_is_slow(host: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "bench.yaml").write_text(CONFIG)
    script, results = REPOSITORY / "benchmarks" / "run_benchmarks.py", tmp_path / "results"
    options = ["--output-dir", results, "--config", tmp_path / "bench.yaml", "--set", f"run.root={tmp_path / 'root'}"]
    words = [*host, sys.executable, str(script), *map(str, options)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cases = {(case.group, case.name): case for case in read_cases(results)}
    fast, slow = cases["network-tiny", "fast"], cases["network-tiny", "slow"]
    found = speedup(fast, slow)
    print(f"fast over slow: {found.estimate:.2f}, {found.low:.2f} to {found.high:.2f}")
    assert found.n == 6
    assert found.low > 1
    assert told(fast) == "fast"
    assert told(slow) == "slow"
    assert fast.varied == slow.varied == ("GLOO_SOCKET_IFNAME",)
    page = to_markdown(benchmark_page(list(cases.values())))
    assert "fast over slow: faster" in page
    assert "gang 12 of 12, slow" in done.stderr  # of the sixth pair, whose order is turned round


def told(case: Case) -> str:
    return case.provenance.environment["GLOO_SOCKET_IFNAME"]
