"""How long it takes from `python flows/train_flow.py run` to the first training step, and where the time goes.

    python benchmarks/startup.py [--runs 10] [--out benchmarks/results/startup.json]

Runs the default job, cut to one step, with its token shards made beforehand by a run that is not measured. Times come
from Metaflow's own lines and from the event log; a point that all ranks reach counts when the last one reaches it.
Medians and quartiles are over the runs, each of which starts from a fresh process.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from measured import option_parser, write_record

from convoy.job.events.log import read_events
from convoy.job.events.types import GenerationStarted, WorkerReady
from convoy.job.record import job_store

FLOW = Path(__file__).resolve().parents[1] / "flows" / "train_flow.py"
OVERRIDES = "train.steps=1 checkpoint.export_model=false evaluation.sample_tokens=0"
RANK_PHASES = ("imported", "connected", "built", "restored", "first_step")
POINTS = (
    "workflow starting",
    "start began",
    "start ended",
    "prepare_data began",
    "prepare_data ended",
    "train began",
    "generation formed",
    *RANK_PHASES,
)
"""In this order; each is reported with the time since the one before it."""

_LINE = re.compile(r"^(\S+ \S+) \[\d+/(\w+)/\S+ .*?\] Task (is starting|finished successfully)\.$", re.MULTILINE)


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="convoy-startup-") as folder:
        one_run(Path(folder), "warm-up")
        runs = [one_run(Path(folder), f"run-{i}") for i in range(options.runs)]
    result = summarise(runs)
    print("\n".join(table(result)))
    write_record(options.out, {"overrides": OVERRIDES, "n": len(runs), **result})
    return 0


def one_run(folder: Path, job: str) -> dict[str, float]:
    """Seconds from the command to each of POINTS."""
    root = folder / "jobs"
    environment = {**os.environ, "CONVOY_ROOT": str(root), "METAFLOW_DATASTORE_SYSROOT_LOCAL": str(folder)}
    command = [sys.executable, str(FLOW), "--config-value", "set", OVERRIDES, "run", "--job", job]
    began = time.time()
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    reached = flow_times(done.stdout) | job_times(root, job)
    return {point: reached[point] - began for point in POINTS}


def flow_times(log: str) -> dict[str, float]:
    """Unix times of what Metaflow printed."""
    times = {"workflow starting": _stamp(log[: log.index(" Workflow starting")])}
    for stamp, step, what in _LINE.findall(log):
        times[f"{step} {'began' if what == 'is starting' else 'ended'}"] = _stamp(stamp)
    return times


def job_times(root: Path, job: str) -> dict[str, float]:
    """Unix times from the event log."""
    events = read_events(job_store(str(root), job))
    formed = max(e.t for e in events if isinstance(e, GenerationStarted))
    ready = [e for e in events if isinstance(e, WorkerReady)]
    return {"generation formed": formed, **{p: max(e.t for e in ready if e.phase == p) for p in RANK_PHASES}}


def summarise(runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Of the whole, and of the time between each point and the one before it."""
    steps = {}
    for before, point in zip((None, *POINTS), POINTS, strict=False):
        steps[point] = [run[point] - (run[before] if before else 0.0) for run in runs]
    return {
        "to_first_step": spread([run["first_step"] for run in runs]),
        "phases": {point: spread(seconds) for point, seconds in steps.items()},
    }


def table(result: dict[str, Any]) -> list[str]:
    """For the terminal. Medians do not add up to the median of the whole exactly."""
    rows = {**result["phases"], "command to first step": result["to_first_step"]}
    width = max(map(len, rows))
    return [f"{name:<{width}}  {s['median']:6.2f} s   ({s['q1']:.2f} to {s['q3']:.2f})" for name, s in rows.items()]


def _stamp(text: str) -> float:
    return datetime.fromisoformat(text.splitlines()[-1].strip()).timestamp()


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, _, high = statistics.quantiles(seconds, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 3
    return {"median": statistics.median(seconds), "q1": low, "q3": high}


def _options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    parser.add_argument("--runs", type=int, default=10, help="how many; one more, for the shards, is not counted")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
