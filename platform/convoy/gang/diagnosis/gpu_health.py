"""GPUs that must not be trained on, by what the driver tells of them. No CUDA here: `nvidia-smi` is asked."""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

ASK_SECONDS = 20.0
"""For each of two questions; a driver without persistence mode wakes its GPUs first."""

KERNEL_LOG = Path("/dev/kmsg")

_LIST = ["nvidia-smi", "-L"]
_REMAPPED = [
    "nvidia-smi", "--query-remapped-rows=gpu_bus_id,remapped_rows.failure", "--format=csv,noheader",
]  # fmt: skip
_LOST = re.compile(r"GPU is lost|Unable to determine the device handle|fallen off the bus", re.IGNORECASE)
_XID = re.compile(r"NVRM: (Xid \(.*)")
_MOST_LOG_BYTES = 8 * 2**20


def gpu_problem(environ: Mapping[str, str], kernel_log: Path = KERNEL_LOG) -> str:
    """What is wrong with a GPU of this machine, in one line; empty: nothing is known to be.

    Wrong is one that the driver has lost, and one whose memory has an error that no spare row could replace (NVIDIA:
    "GPU Memory Error Management", row remapping failure). Waits for the driver; one that does not answer is not blamed.
    """
    if shutil.which("nvidia-smi", path=environ.get("PATH", "")) is None:
        return ""
    found = lost_gpu(_answer(_LIST, environ)) or unmappable_gpu(_answer(_REMAPPED, environ))
    if not found:
        return ""
    with contextlib.suppress(OSError):  # not allowed in most containers
        last = newest_xid(_read(kernel_log))
        return f"{found} (the kernel logged: {last})" if last else found
    return found


def lost_gpu(answer: str) -> str:
    """answer: of `nvidia-smi -L`."""
    return next((line.strip() for line in answer.splitlines() if _LOST.search(line)), "")


def unmappable_gpu(answer: str) -> str:
    """answer: of `nvidia-smi --query-remapped-rows`, whose drivers write 1 or Yes; GPUs before Ampere have none."""
    for line in answer.splitlines():
        bus, _, failed = line.partition(",")
        if failed.strip().lower() in ("1", "yes"):
            return f"GPU {bus.strip()}: an error in its memory could not be mapped out"
    return ""


def newest_xid(log: str) -> str:
    """The driver's last error in the kernel's log; empty: there is none."""
    found = _XID.findall(log)
    return " ".join(found[-1].split())[:200] if found else ""


def _answer(command: list[str], environ: Mapping[str, str]) -> str:
    """What it prints, on either stream: of a lost GPU it tells by an error. Empty if it cannot be asked."""
    try:
        done = subprocess.run(command, env=dict(environ), capture_output=True, text=True, timeout=ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f"{done.stdout}\n{done.stderr}"


def _read(log: Path) -> str:
    """What is there now; of the kernel's log each read gives one record, and an error where it has moved on."""
    descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    records: list[bytes] = []
    try:
        while sum(map(len, records)) < _MOST_LOG_BYTES:
            try:
                record = os.read(descriptor, 8192)
            except BrokenPipeError:  # records were overwritten before they were read
                continue
            except BlockingIOError:
                break
            if not record:
                break
            records.append(record)
    finally:
        os.close(descriptor)
    return b"".join(records).decode(errors="replace")
