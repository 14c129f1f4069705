"""The network suite in a lab: a rank on each of its hosts, which are network namespaces of this one."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from convoy.benchmark.plan import GROUPS, network_groups
from convoy.config.benchmark import BenchConfig
from convoy.drills.testbed.lab import Lab
from convoy.drills.testbed.lab_spec import parse_lab
from convoy.network.launchers import PORT

RANKS = "convoy.benchmark.measure.network_ranks"


def measure_in_lab(
    config: BenchConfig, text: str, folder: Path, say: Callable[[str], None], command: str = ""
) -> list[str]:
    """Make the lab that `text` describes, measure in it, and write the cases into the folder; returns what failed.

    Raises ConfigError for a lab that cannot be, or cannot be made here.
    """
    spec = parse_lab(text)
    if config.network.link_gbps is None:  # of one rail: all but the measurement of rails use the first one only
        network = config.network.model_copy(update={"link_gbps": spec.gbps})
        config = config.model_copy(update={"network": network})
    groups = network_groups(config, spec.hosts, 1, command, spec.describe())
    with tempfile.TemporaryDirectory(prefix="convoy-lab-") as name, Lab(spec) as lab:
        plan = Path(name) / "groups.json"
        plan.write_bytes(GROUPS.dump_json(tuple(groups)))
        say(f"lab: {spec.describe()}")
        return lab.run_on_hosts(
            [sys.executable, "-m", RANKS, str(plan), str(folder)],
            [_variables(host, spec.hosts, lab.addresses[0]) for host in range(spec.hosts)],
            say,
        )


def _variables(host: int, hosts: int, address: str) -> dict[str, str]:
    """The variables of a host's rank, as torchrun would set them."""
    return {
        **os.environ,
        "RANK": str(host),
        "WORLD_SIZE": str(hosts),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": address,
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": "eth0",
        "CUDA_VISIBLE_DEVICES": "",  # two ranks cannot share a GPU, and the lab's links are of the host's kernel
        "UCX_NET_DEVICES": "eth0",
        "UCX_TLS": "tcp",  # the hosts share this one's memory, through which UCX would send
    }
