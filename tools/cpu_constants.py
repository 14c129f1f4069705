#!/usr/bin/env python3
"""Fit the planner's constants of CPUs (planner/step/cpu.json) to the steps that benchmarks/cpu_steps.py measured.

tools/cpu_constants.py [ROWS]   write them, also to docs/explanation/step-time.md; print the error of each row
tools/cpu_constants.py --check  exit 1 if what is there is out of date
"""

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convoy.benchmark.planner_fit import leave_one_out_errors
from convoy.benchmark.planner_runs import workload_of
from convoy.catalog.measured_machine import MeasuredMachine
from convoy.config.run import RunConfig
from convoy.planner.step.calibration import NEGLIGIBLE, Calibration, Prior, prior, shipped_calibration
from convoy.planner.step.work import Kernels
from convoy.planner.validation.fit import fit_calibration, percent_errors
from convoy.planner.validation.published import MeasuredRun
from convoy.planner.validation.validate import median_abs, p90_abs
from generated import replaced

REPOSITORY = Path(__file__).resolve().parents[1]
ROWS = REPOSITORY / "benchmarks" / "results" / "cpu_steps.json"
CONSTANTS = REPOSITORY / "platform" / "convoy" / "planner" / "step" / "cpu.json"
DOCUMENT = REPOSITORY / "docs" / "explanation" / "step-time.md"

NOTHING = 1e-9

EXPECTED: Mapping[str, Any] = {
    # Shares of what was measured, at the job's own sizes: with what products move, and with the width of its heads.
    "matmul_efficiency": {"cpu": 1.0},
    "attention_efficiency": {"cpu": 1.0},
    "triton_attention_efficiency": {"cpu": 1.0},
    "memory_efficiency": 1.0,
    "inside_efficiency": 1.0,
    "between_efficiency": 1.0,
    "matmul_traffic": NEGLIGIBLE,
    "narrow_head": NEGLIGIBLE,
    # No stream runs ahead of another one, and no core starts kernels for another one.
    "contention": NEGLIGIBLE,
    "kernel_seconds": NOTHING,
    "host_seconds": NOTHING,
    "straggling": 1e-6,  # between machines, of which these are one
    "fp8_speedup": 1.0,
    # Counted kernels are several operations each with autograd and FSDP2's hooks.
    "operations": 4.0,
    "step_seconds": 0.001,
}
"""Before a step is measured; what is not here is as on GPUs."""

SPREAD = {
    "matmul_efficiency.cpu": 0.15,
    "attention_efficiency.cpu": 0.3,
    "elementwise_traffic": 0.5,  # of the rate of one kind of operation, a GELU, for all kinds
    "logit_bytes": 1.0,  # exponentials are no bytes, and take a CPU longer than these
    "sharding_traffic": 0.5,
    "optimizer_bytes": 0.3,
    "operations": 0.7,
    "step_seconds": 1.0,
}


def cpu_prior() -> Prior:
    """What physics says about a measured CPU, with its uncertainty."""
    physics = prior()
    constants = physics.constants.model_copy(update=dict(EXPECTED))
    return physics.model_copy(update={"constants": constants, "spread": SPREAD, "stands_for": {}})


def read(path: Path) -> list[MeasuredRun]:
    """The rows of a file, in its order."""
    results = json.loads(path.read_text())
    cores, torch = results["hardware"]["cores"], results["versions"]["torch"]
    where = f"{cores} cores of {results['hardware']['cpu']}, torch {torch}, {results['date'][:10]}"
    return [_measured(row, f"Convoy's own steps of one rank beside another and of two together on {where}")
            for row in results["rows"]]  # fmt: skip


def _measured(row: Mapping[str, Any], source: str) -> MeasuredRun:
    machine = MeasuredMachine.model_validate(row["machine"])
    job = workload_of(RunConfig.model_validate(row["config"]), 1, row["ranks"], machine, on_gpus=False)
    speed = job.tokens_per_step / job.ranks / row["seconds"]
    return MeasuredRun(f"{row['name']}, ranks: {row['ranks']}", source, job, Kernels(), speed)


def fitted(rows: Sequence[MeasuredRun]) -> Calibration:
    """Fit without the digests of its rows, which `convoy plan validate` never reads."""
    return fit_calibration(rows, cpu_prior()).model_copy(update={"seen": ()})


def others(rows: Sequence[MeasuredRun]) -> list[float]:
    """Errors of tokens/s, in percent, of each configuration with a fit to all others."""
    names = [row.name.rpartition(",")[0] for row in rows]
    alike = [[number for number, name in enumerate(names) if name == each] for each in dict.fromkeys(names)]
    return leave_one_out_errors(rows, alike, cpu_prior())


def table(rows: Sequence[MeasuredRun], calibration: Calibration) -> str:
    """Markdown."""
    columns = (percent_errors(rows, shipped_calibration("cpu")), percent_errors(rows, calibration), others(rows))
    lines = ["| tokens/s of | measured | shipped | fitted | fitted to others |", "| --- | --- | --- | --- | --- |"]
    for row, *errors in zip(rows, *columns, strict=True):
        lines.append(f"| {row.name} | {row.tokens_per_second:.0f} | {' | '.join(f'{e:+.1f} %' for e in errors)} |")
    for name, of in (("median", median_abs), ("90th percentile", p90_abs)):
        lines.append(f"| {name} | | {' | '.join(f'{of(column):.1f} %' for column in columns)} |")
    return "\n".join(lines)


def section(rows: Sequence[MeasuredRun], calibration: Calibration) -> str:
    """Markdown: the constants, and their errors."""
    physics, constants = cpu_prior(), calibration.constants.model_dump()
    expected = physics.constants.model_dump()
    lines = [
        textwrap.fill(f"{calibration.data}:", 120),
        "",
        "| constant | expected, and its spread | fitted |",
        "| --- | --- | --- |",
    ]
    for name, spread in physics.spread.items():
        field, _, chip = name.partition(".")
        before, after = (values[field][chip] if chip else values[field] for values in (expected, constants))
        lines.append(f"| `{field}` | {before:.3g}, ± {100 * spread:.0f} % | {after:.3g} |")
    lines += [
        "",
        "| tokens/s of steps | number | median error | 90th | worst | fitted to others: median | 90th |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    errors = list(zip(rows, percent_errors(rows, calibration), others(rows), strict=True))
    for name, counts in (("of one rank", {1}), ("of two ranks", {2}), ("all", {1, 2})):
        own, left = zip(*(pair for row, *pair in errors if row.workload.ranks in counts), strict=True)
        figures = (median_abs(own), p90_abs(own), max(own, key=abs), median_abs(left), p90_abs(left))
        cells = [f"{figure:+.1f} %" if number == 2 else f"{figure:.1f} %" for number, figure in enumerate(figures)]
        lines.append(f"| {name} | {len(own)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rewritten(document: str, text: str) -> str:
    return replaced(document, "cpu", "cpu_constants.py", text)


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    if arguments == ["--check"]:
        rows, shipped = read(ROWS), shipped_calibration("cpu")
        document = DOCUMENT.read_text()
        same = near(fitted(rows), shipped) and rewritten(document, section(rows, shipped)) == document
        print("up to date" if same else f"{CONSTANTS.name}, {DOCUMENT.name}: run tools/cpu_constants.py")
        return 0 if same else 1
    rows = read(Path(arguments[0]) if arguments else ROWS)
    calibration = fitted(rows)
    print(table(rows, calibration))
    CONSTANTS.write_text(calibration.model_dump_json(indent=2, exclude={"seen", "stands_for", "machines"}) + "\n")
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text(), section(rows, calibration)))
    return 0


def near(one: Calibration, other: Calibration) -> bool:
    """Whether all fitted constants are equal, except that machines add up in another order."""

    def get(calibration: Calibration, name: str) -> float:
        field, _, chip = name.partition(".")
        value = getattr(calibration.constants, field)
        return float(value[chip] if chip else value)

    return all(abs(get(one, name) / get(other, name) - 1) < 0.02 for name in SPREAD)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
