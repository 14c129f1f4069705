#!/usr/bin/env python3
"""Write the planner's figures in docs/ from the measurements themselves: a sample page, constants, accuracy, ablation,
break-even, picture.

tools/planner_tables.py           write it
tools/planner_tables.py --check   exit 1 if what is there is out of date
"""

import io
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from convoy.catalog.instances import instance
from convoy.config.loader import read_run, resolve
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.train import TrainConfig
from convoy.display.charts import BLUE, GREEN, INK, LABEL, ORANGE, VERMILION, chart_spec
from convoy.display.html import draw_svg
from convoy.display.page import Chart
from convoy.display.terminal import show
from convoy.planner.pages.plan import plan_page
from convoy.planner.plan import plan
from convoy.planner.step.break_even import break_even_tokens, network_bytes_per_parameter
from convoy.planner.step.calibration import Constants, Prior, efficiency_key, prior, shipped_calibration
from convoy.planner.step.hardware import peak_rates
from convoy.planner.validation.fit import fit_calibration, percent_errors
from convoy.planner.validation.published import MeasuredRun, published_runs, read_measured
from convoy.planner.validation.validate import baseline_errors, median_abs, p90_abs
from convoy.planner.workload import Workload, rented_machine
from generated import replaced

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
PICTURE = DOCS / "images" / "planner.svg"
OTHERS = REPOSITORY / "tests" / "planner" / "other_clusters.csv"
SAMPLE = "gpt-7b-p4d"
"""Preset of the sample plan."""
FOLDS = 10
NOTHING, WITHOUT_END = 1e-9, 1e9
TICKS = [300, 1000, 3000, 10000, 30000, 100000]

ABLATIONS: dict[str, dict[str, float]] = {
    "attention as efficient as other products": {
        "triton_attention_efficiency.A100": 0.82,
        "triton_attention_efficiency.H100": 0.7,
        "attention_efficiency.A100": 0.82,
        "attention_efficiency.H100": 0.7,
    },
    "no cost of narrow heads": {"narrow_head": NOTHING},
    "products hide their own traffic": {"matmul_traffic": NOTHING},
    "no work between products": {"elementwise_traffic": NOTHING},
    "no traffic of the loss": {"logit_bytes": NOTHING},
    "no gaps between kernels": {"kernel_seconds": NOTHING},
    "no network, no NVLink": {"inside_efficiency": WITHOUT_END, "between_efficiency": WITHOUT_END},
    "no latency": {"hop_factor": NOTHING},
    "no contention with what is hidden": {"contention": NOTHING},
    "no packing of messages": {"sharding_traffic": NOTHING},
    "no optimizer": {"optimizer_bytes": NOTHING},
    "no fixed time of a step": {"step_seconds": NOTHING},
    "no straggling": {"straggling": 0.0},
}
"""What is left out: the values of constants that are not fitted then."""


def constants() -> str:
    """Markdown table."""
    physics, constants = prior(), shipped_calibration().constants
    lines = ["| constant | prior, and its spread | fitted | from |", "| --- | --- | --- | --- |"]
    for name in _names(constants):
        spread = physics.spread.get(name)
        fitted = f"{_value(constants, name):.3g}" if spread else "not fitted"
        before = f"{_value(physics.constants, name):.3g}" + (f", ± {100 * spread:.0f} %" if spread else "")
        lines.append(f"| `{name}` | {before} | {fitted} | {physics.sources[name.partition('.')[0]]} |")
    return "\n".join(lines)


def accuracy() -> str:
    """Markdown table: errors of the planner and of a baseline, on rows that neither was fitted to."""
    rows, clusters = published_runs(), read_measured(OTHERS)
    lines = [
        "| left out | runs | planner: median | 90th | worst | constant HFU: median | 90th |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        _line("a tenth at a time", len(rows), *_in_tenths(rows, prior())),
    ]
    for name in dict.fromkeys(row.name for row in rows):
        left, fitted = [row for row in rows if row.name == name], [row for row in rows if row.name != name]
        wrong = percent_errors(left, fit_calibration(fitted, prior()))
        lines.append(_line(name, len(left), wrong, baseline_errors(fitted, left)))
    for name, source in _by_source(clusters).items():
        wrong = percent_errors(source, shipped_calibration())
        lines.append(_line(name, len(source), wrong, baseline_errors(rows, source)))
    wrong = percent_errors(clusters, shipped_calibration())
    lines.append(_line("all other clusters", len(clusters), wrong, baseline_errors(rows, clusters)))
    return "\n".join(lines)


def ablation() -> str:
    """Markdown table: each part left out, and all other constants fitted again."""
    rows, clusters = published_runs(), read_measured(OTHERS)
    lines = [
        "| model | a tenth left out: median | 90th | other clusters: median | worst |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, values in {"whole": {}, **ABLATIONS}.items():
        without = _without(prior(), values)
        ours, _ = _in_tenths(rows, without)
        wrong = percent_errors(clusters, fit_calibration(rows, without))
        figures = (median_abs(ours), p90_abs(ours), median_abs(wrong), max(map(abs, wrong)))
        lines.append(f"| {name} | " + " | ".join(f"{figure:.1f} %" for figure in figures) + " |")
    return "\n".join(lines)


def picture() -> str:
    """SVG: predicted over measured tokens/s, each row a point."""
    points = []
    for what, rows in {"fitted to": published_runs(), **_by_source(read_measured(OTHERS))}.items():
        wrong = percent_errors(rows, shipped_calibration())
        points += [
            {"what": what, "measured": row.tokens_per_second, "ratio": 1 + error / 100}
            for row, error in zip(rows, wrong, strict=True)
        ]
    names = list(dict.fromkeys(str(point["what"]) for point in points))
    speed = {"field": "measured", "type": "quantitative", "scale": {"type": "log", "domain": [300, 200000]}}
    ratio = {"field": "ratio", "type": "quantitative", "scale": {"domain": [0.8, 1.3], "zero": False}}
    colour = {"domain": names, "range": [BLUE, ORANGE, GREEN, VERMILION][: len(names)]}
    layers = [
        {
            "data": {"values": [{}]},
            "mark": {"type": "rule", "color": INK},
            "encoding": {"y": {"datum": 1, "type": "quantitative"}},
        },
        {
            "data": {"values": points},
            "mark": {"type": "point", "filled": True, "size": 22, "opacity": 0.8},
            "encoding": {
                "x": {**speed, "title": "measured tokens/s of a GPU", "axis": {"labelExpr": LABEL, "values": TICKS}},
                "y": {**ratio, "title": "predicted over measured", "axis": {"tickCount": 7, "grid": True}},
                "color": {
                    "field": "what",
                    "type": "nominal",
                    "sort": names,
                    "scale": colour,
                    "legend": {"orient": "bottom", "offset": 34},
                },
            },
        },
    ]
    title = "Each point is a run"
    return draw_svg(Chart(title, chart_spec(title, {"layer": layers}), {}), 760)


def break_even() -> str:
    """Markdown table: tokens of a pass that hide what is sent, with the constants that `convoy plan` uses."""
    calibration = shipped_calibration()
    share = calibration.constants.between_efficiency

    def sent(**parallel: Any) -> float:
        train = TrainConfig(global_batch=4 * 32, micro_batch=1, param_dtype="bf16")
        machine, config = rented_machine(instance("p4d.24xlarge"), 8), ParallelConfig.model_validate(parallel)
        return network_bytes_per_parameter(Workload(TransformerConfig(), 256, train, config, machine, 4))

    ways = {
        "fsdp, machines without number": 8.0,
        "fsdp, 4 machines": sent(),
        "the same, reduced once a step of 4 passes": sent(reduce_every_pass=False),
        "hsdp over single machines, 4 of them, 4 passes": sent(strategy="hsdp"),
    }
    lines = [
        f"| machine | network | a GPU's matmul rate | {' | '.join(ways)} |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in ("p4d.24xlarge", "p5.48xlarge"):
        machine = peak_rates(rented_machine(instance(name), 8))
        of_peak = calibration.constants.matmul_efficiency[efficiency_key(calibration, machine.chip)]
        network, rate = share * machine.between_bytes_per_second, of_peak * machine.flops
        tokens = [break_even_tokens(size, network, rate) for size in ways.values()]
        rates = (
            f"{network / 1e9:,.1f} GB/s ({share:.1%} of line rate) | {rate / 1e12:,.0f} TFLOP/s ({of_peak:.1%} of peak)"
        )
        lines.append(f"| {name} | {rates} | " + " | ".join(f"{each:,.0f}" for each in tokens) + " |")
    return "\n".join(lines)


def sample() -> str:
    """What `convoy plan` prints of a preset, as a block of Markdown."""
    path = REPOSITORY / "configs" / "train" / f"{SAMPLE}.yaml"
    printed = Console(file=io.StringIO(), width=100)
    show(plan_page(plan(resolve(read_run(path.read_text()), {}))), printed)
    lines = [line.rstrip() for line in printed.file.getvalue().strip().splitlines()]  # type: ignore[attr-defined]
    return "\n".join(["```text", *lines, "```"])


TABLES = {
    "sample": sample,
    "constants": constants,
    "accuracy": accuracy,
    "ablation": ablation,
    "break-even": break_even,
}
"""By the names in their marks."""


DOCUMENTS: dict[Path, tuple[str, ...]] = {
    DOCS / "guides" / "planning.md": ("sample",),
    DOCS / "explanation" / "step-time.md": ("constants",),
    DOCS / "explanation" / "planner-accuracy.md": ("accuracy", "ablation"),
    DOCS / "explanation" / "interruptions.md": ("break-even",),
}
"""The tables of each document."""


def rewritten(document: str, names: Iterable[str]) -> str:
    """The document with the tables between their marks brought up to date."""
    for name in names:
        document = replaced(document, name, "planner_tables.py", TABLES[name]())
    return document


def _in_tenths(rows: Sequence[MeasuredRun], physics: Prior) -> tuple[list[float], list[float]]:
    """Errors of the planner and of the baseline."""
    shuffled = list(rows)
    random.Random(0).shuffle(shuffled)
    ours: list[float] = []
    baseline: list[float] = []
    for fold in range(FOLDS):
        fitted, left = [row for i, row in enumerate(shuffled) if i % FOLDS != fold], shuffled[fold::FOLDS]
        ours += percent_errors(left, fit_calibration(fitted, physics))
        baseline += baseline_errors(fitted, left)
    return ours, baseline


def _by_source(rows: Sequence[MeasuredRun]) -> dict[str, list[MeasuredRun]]:
    """Short names of the clusters."""
    sources: dict[str, list[MeasuredRun]] = {}
    for row in rows:
        repository, chip = row.source.split()[0].split("/")[1], row.workload.machine.gpu
        sources.setdefault(repository if "fms" in repository else f"{repository} {chip}", []).append(row)
    return sources


def _line(name: str, runs: int, ours: list[float], constant: list[float]) -> str:
    figures = [median_abs(ours), p90_abs(ours), max(map(abs, ours))]
    figures += [median_abs(constant), p90_abs(constant)]
    return f"| {name} | {runs} | " + " | ".join(f"{figure:.1f} %" for figure in figures) + " |"


def _without(physics: Prior, values: Mapping[str, float]) -> Prior:
    constants = physics.constants.model_dump()
    for name, value in values.items():
        field, _, chip = name.partition(".")
        if chip:
            constants[field][chip] = value
        else:
            constants[field] = value
    spread = {name: width for name, width in physics.spread.items() if name not in values}
    return physics.model_copy(update={"constants": Constants.model_validate(constants), "spread": spread})


def _names(constants: Constants) -> list[str]:
    return [
        name
        for field, value in constants
        for name in ([f"{field}.{chip}" for chip in value] if isinstance(value, dict) else [field])
    ]


def _value(constants: Constants, name: str) -> float:
    field, _, chip = name.partition(".")
    value = getattr(constants, field)
    return float(value[chip] if chip else value)


def main(arguments: list[str]) -> int:
    new = {path: rewritten(path.read_text(), names) for path, names in DOCUMENTS.items()} | {PICTURE: picture()}
    stale = [path for path, text in new.items() if not path.exists() or path.read_text() != text]
    if arguments == ["--check"]:
        for path in stale:
            print(f"{path.relative_to(REPOSITORY)} is out of date; run tools/planner_tables.py", file=sys.stderr)
        return int(bool(stale))
    for path in stale:
        path.write_text(new[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
