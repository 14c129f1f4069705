"""A group of drills, which form gangs of their own on this host."""

import os
import subprocess
import sys
from collections.abc import Callable

from convoy.benchmark.groups import Group
from convoy.gang.assignment import Script
from convoy.launch.checks.host import local_gpus
from convoy.launch.gang.step import GangFailedError

DRILLS = "convoy.benchmark.drill_worker"


def run_drills(group: Group, script: Script, say: Callable[[str], None]) -> None:
    """Have them write a case each, to where the script's arguments say. Raises GangFailedError."""
    command = [sys.executable, "-m", DRILLS, *script.args]
    last = ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(group, local_gpus())
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                last = line.strip() or last
                say(f"{group.name}: {line.rstrip()}")
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise GangFailedError(f"the drills ended with exit code {process.returncode}: {last}")


def environment(group: Group, gpus: int) -> dict[str, str]:
    """Of the drills: gangs of more workers than this host has GPUs train on its CPU."""
    workers = group.recovery.nodes if group.recovery is not None else 1
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if 0 < gpus < workers else {}
    return {**os.environ, **hidden}
