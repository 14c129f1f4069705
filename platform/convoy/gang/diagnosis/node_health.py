"""Whether a machine is fit to train: by what all ranks measure before the first step, and by what its GPU driver says.

Ranks on a shared machine are never equally fast, and a gang that does not start because of noise is worse than one that
starts on a slow node, which is reported later (`stragglers.py`). So only a clear outlier is unfit, in two rounds.
"""

import re
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MATMUL_FACTOR = {"cpu": 2.5, "cuda": 1.3}
"""Times as slow as the median of the others. Cores of one kind differ by what else runs on their machine; GPUs of one
kind do the same work within a few percent, unless one is throttled."""

LINK_FACTOR = 5.0
LINK_MIN_SECONDS = 0.01
"""An exchange over the network is slow if it takes this many times as long as the others', and this much longer."""

DEVIATIONS = 3.5
"""And by this many standard deviations, estimated from the median absolute deviation of the others, so that one bad
rank does not hide itself. Source: Iglewicz and Hoaglin, "How to Detect and Handle Outliers", ASQC 1993."""

MIN_DEVIATION = 0.05
"""As a share of the median: with few ranks a smaller deviation is chance."""

ROUNDS = 3
"""In each, ranks in a ring are paired with a neighbour, as far as they have one that is free."""

DRIVER_SECONDS = 20.0
"""For each of two queries; a driver without persistence mode wakes its GPUs first."""

_SIGMA_OVER_MAD = 1.4826
"""Of the normal distribution."""

_LIST = ["nvidia-smi", "-L"]
_REMAPPED = [
    "nvidia-smi", "--query-remapped-rows=gpu_bus_id,remapped_rows.failure", "--format=csv,noheader",
]  # fmt: skip
_LOST = re.compile(r"GPU is lost|Unable to determine the device handle|fallen off the bus", re.IGNORECASE)


@dataclass(frozen=True)
class RankMeasurement:
    """One rank's measurements; seconds are the best of several, 0: not measured."""

    device: str
    """What computes. Ranks with different devices are not compared."""
    kind: str
    """cpu or cuda."""
    matmul_seconds: float
    link_seconds: float
    """Of an exchange with a neighbour, the better of two: see `partner`."""


def unfit_ranks(measurements: Sequence[RankMeasurement]) -> dict[int, str]:
    """The ranks whose machine is not fit, and why, in one line each. measurements: by rank."""
    problems: dict[int, str] = {}
    for rank, own in enumerate(measurements):
        others = [other for i, other in enumerate(measurements) if i != rank and other.device == own.device]
        matmul = _outlier_ratio(own.matmul_seconds, [o.matmul_seconds for o in others], MATMUL_FACTOR[own.kind])
        link = _outlier_ratio(own.link_seconds, [o.link_seconds for o in others], LINK_FACTOR, LINK_MIN_SECONDS)
        if matmul is not None:
            problems[rank] = f"a matrix product takes {matmul:.1f} times as long as on the other ranks"
        elif link is not None:
            problems[rank] = f"an exchange with either neighbour takes {link:.1f} times as long as between the others"
    return problems


def partner(position: int, size: int, round_: int) -> int | None:
    """The position of the neighbour in a ring with which to exchange in this round; None: there is none.

    Over all rounds each pair of neighbours meets once. So a rank with a bad link has two bad exchanges, and its
    neighbours have one. size: at least 3.
    """
    odd = size % 2 == 1
    match round_:
        case 0:
            other = position + 1 if position % 2 == 0 else position - 1
        case 1:
            other = position + 1 if position % 2 == 1 else position - 1
            if not odd:
                other %= size
        case _:
            other = {0: size - 1, size - 1: 0}.get(position, -1) if odd else -1
    return other if 0 <= other < size else None


def _outlier_ratio(own: float, others: Sequence[float], factor: float, least_seconds: float = 0.0) -> float | None:
    """How many times as long as the others' median it is, if it is clearly out; else None."""
    measured = [seconds for seconds in others if seconds > 0]
    if not measured or own <= 0:
        return None
    median = statistics.median(measured)
    deviation = _SIGMA_OVER_MAD * statistics.median(abs(seconds - median) for seconds in measured)
    beyond = own - median
    clear = beyond > DEVIATIONS * max(deviation, MIN_DEVIATION * median) and beyond > least_seconds
    return own / median if clear and own > factor * median else None


def query_gpu_problem(environ: Mapping[str, str]) -> str:
    """What is wrong with a GPU of this machine, in one line; empty: nothing, as far as is known.

    A GPU is bad if the driver has lost it, or if its memory has an error that no spare row could replace (NVIDIA: "GPU
    Memory Error Management", row remapping failure). Waits for the driver; one that does not answer is not blamed.
    """
    if shutil.which("nvidia-smi", path=environ.get("PATH", "")) is None:
        return ""
    return lost_gpu_line(_stdout_and_stderr(_LIST, environ)) or remap_failure_line(
        _stdout_and_stderr(_REMAPPED, environ)
    )


def lost_gpu_line(answer: str) -> str:
    """answer: of `nvidia-smi -L`."""
    return next((line.strip() for line in answer.splitlines() if _LOST.search(line)), "")


def remap_failure_line(answer: str) -> str:
    """answer: of `nvidia-smi --query-remapped-rows`, whose drivers write 1 or Yes; GPUs before Ampere have none."""
    for line in answer.splitlines():
        bus, _, failed = line.partition(",")
        if failed.strip().lower() in ("1", "yes"):
            return f"GPU {bus.strip()}: an error in its memory could not be mapped out"
    return ""


def _stdout_and_stderr(command: list[str], environ: Mapping[str, str]) -> str:
    """What it prints, on either stream: it reports a lost GPU as an error. Empty if it cannot be run."""
    try:
        done = subprocess.run(command, env=dict(environ), capture_output=True, text=True, timeout=DRIVER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f"{done.stdout}\n{done.stderr}"
