"""A whole benchmark on this host, without Metaflow."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from convoy.benchmark.results.files import write_case
from convoy.benchmark.results.history import keep
from convoy.config.benchmark import BenchConfig
from convoy.config.errors import ConfigError
from convoy.launch.benchmark.groups import Ran, gang_here, run_groups
from convoy.launch.benchmark.split import Share, shares_of
from convoy.launch.checks.compatibility import world
from convoy.launch.checks.host import local_gpus
from convoy.storage import open_store


def share_here(config: BenchConfig) -> Share:
    """Every group, checked against this host before anything starts. Raises ConfigError."""
    shares = shares_of(config)
    backend = shares[0].groups[0].run.cluster.backend
    if backend != "local":
        raise ConfigError(f"run.cluster.backend = {backend}: must be local; flows/benchmark_flow.py starts machines")
    return shares[0]


def run_here(config: BenchConfig, folder: Path, say: Callable[[str], None], command: str = "") -> list[Ran]:
    """Run every group, and write each case into the folder, and below the root, as soon as its group has ended.

    Raises ConfigError before anything starts.
    """
    share = share_here(config)
    ranks = world(share.groups[0].run, local_gpus())
    store = open_store(str(share.groups[0].run.root))
    run = f"bench-{socket.gethostname()}-{int(time.time())}-{os.getpid()}"
    done = []
    for ran in run_groups(share.groups, gang_here(run, ranks.nodes, ranks.nproc_per_node), say, command):
        for case in ran.cases:
            write_case(folder, case)
            keep(store, run, case)
        done.append(ran)
    return done
