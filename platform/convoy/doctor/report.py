"""All that the doctor looks at, side by side."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console

from convoy.config.loader import default_root
from convoy.doctor.diagnosis import Diagnosis, print_findings
from convoy.doctor.host import Host
from convoy.doctor.machine import (
    check_extension,
    check_gpus,
    check_notices,
    check_packages,
    check_python,
    check_root_bucket,
    check_root_folder,
    check_shared_memory,
)
from convoy.doctor.network import check_network
from convoy.storage import is_shared


def check_machine(
    environ: Mapping[str, str], root: str, dev: Path = Path("/dev"), sysfs: Path = Path("/sys")
) -> list[Diagnosis]:
    """All findings, looked for side by side. root: where jobs live, a folder, `s3://bucket/prefix` or `gs://…`."""
    checks: list[Callable[[], Diagnosis]] = [
        lambda: check_python(environ),
        check_packages,
        lambda: check_extension(environ),
        lambda: check_root_bucket(root) if is_shared(root) else check_root_folder(root),
        lambda: check_shared_memory(dev / "shm"),
        lambda: check_gpus(environ),
        lambda: check_notices(environ, sysfs),
    ]
    with ThreadPoolExecutor(len(checks)) as pool:
        return list(pool.map(lambda check: check(), checks))


def run_doctor(console: Console, peer: str | None = None) -> int:
    """Print all findings; 1 if one of them is a problem, else 0. peer: a host to which the path is examined. Raises
    ConfigError if there is no way to it."""
    network = check_network(Host(), peer)
    machine = check_machine(os.environ, default_root())
    console.print("Machine")
    print_findings(console, machine)
    console.print("\nNetwork")
    print_findings(console, network)
    return int(any(finding.level == "problem" for finding in (*machine, *network)))
