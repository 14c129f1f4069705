"""Two ranks on two hosts, of a lab: what a function of a test returns on each of them."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from convoy.drills.testbed.lab import Lab
from tests.network.meetings import meet

TIMEOUT_SECONDS = 60.0

PORT = 29555


def on_hosts(
    lab: Lab,
    function: str,
    *arguments: Any,
    environment: Sequence[str] = (),
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> list[Any]:
    """What `MODULE:FUNCTION(meeting, *arguments)` returns on each host's one rank. Arguments and results are JSON."""
    ranks = [
        subprocess.Popen(
            [*lab.command_prefix(rank), "env", "GLOO_SOCKET_IFNAME=eth0", *environment, sys.executable, "-m",
             __name__, str(rank), str(len(lab.addresses)), lab.addresses[0], function, json.dumps(arguments)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(len(lab.addresses))
    ]  # fmt: skip
    try:
        texts = [rank.communicate(timeout=timeout_seconds)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), texts
    return [json.loads(text.splitlines()[-1]) for text in texts]


def main(rank: int, ranks: int, address: str, name: str, arguments: list[Any]) -> None:
    """Meet the other ranks, and print what the function returns."""
    torch.set_num_threads(1)
    store = dist.TCPStore(address, PORT, ranks, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    meeting = meet(rank, [f"host{each}" for each in range(ranks)])
    module, _, function = name.partition(":")
    result = getattr(importlib.import_module(module), function)(meeting, *arguments)
    print(json.dumps(result), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], json.loads(sys.argv[5]))
