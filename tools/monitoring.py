#!/usr/bin/env python3
"""Write the Grafana dashboard and the table of metrics in the documentation, from the list of metrics itself.

tools/monitoring.py           write them
tools/monitoring.py --check   exit 1 if what is there is out of date
"""

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from convoy.launch.monitor.metrics import COMMON_LABELS, METRICS, Metric
from generated import replaced

REPOSITORY = Path(__file__).resolve().parents[1]
DASHBOARD = REPOSITORY / "infra" / "grafana" / "convoy.json"
DOCUMENT = REPOSITORY / "docs" / "guides" / "watch.md"

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
JOB, NODE = COMMON_LABELS
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
"""Of a panel, in units of Grafana's grid, which is 24 wide; and panels next to each other."""

UNITS = {
    "": "short", "seconds": "s", "ratio": "percentunit", "bytes": "bytes", "usd": "currencyUSD", "watts": "watt",
    "celsius": "celsius", "hertz": "hertz",
}  # fmt: skip
"""Grafana's names of the metrics' units."""


def query(metric: Metric) -> str:
    """In PromQL."""
    selected = f'{metric.sample_name}{{{JOB}=~"$job", {NODE}=~"$node"}}'
    return f"rate({selected}[$__rate_interval])" if metric.is_rate else selected


def panel(metric: Metric, number: int, x: int, y: int) -> dict[str, Any]:
    legend = [JOB] if metric.group == "Job" else [NODE, *metric.labels]
    unit = "Bps" if metric.is_rate else UNITS[metric.unit]
    return {
        "id": number,
        "type": "timeseries",
        "title": metric.title,
        "description": metric.help,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": "A",
                "datasource": DATASOURCE,
                "expr": query(metric),
                "legendFormat": " ".join(f"{{{{{label}}}}}" for label in legend),
            }
        ],
    }


def variable(name: str, label: str) -> dict[str, Any]:
    """A choice among the values of a label."""
    first = METRICS[-1].sample_name  # every node has it
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": f"label_values({first}, {label})", "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> str:
    panels: list[dict[str, Any]] = []
    y = 0
    for group, metrics in groupby(METRICS, key=lambda metric: metric.group):
        place = {"x": 0, "y": y, "w": 24, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": group, "gridPos": place, "panels": []})
        y += 1
        members = list(metrics)
        for i, metric in enumerate(members):
            panels.append(panel(metric, len(panels) + 1, WIDTH * (i % COLUMNS), y + HEIGHT * (i // COLUMNS)))
        y += HEIGHT * -(-len(members) // COLUMNS)
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    made = {
        "uid": "convoy",
        "title": "Convoy",
        "tags": ["convoy"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [source, variable("job", JOB), variable("node", NODE)]},
        "panels": panels,
    }
    return json.dumps(made, indent=2) + "\n"


def table() -> str:
    """Markdown: a line for each metric."""
    lines = ["| metric | labels | |", "|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.sample_name}` | {labels} | {metric.help} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    new = {DASHBOARD: dashboard(), DOCUMENT: replaced(DOCUMENT.read_text(), "metrics", "monitoring.py", table())}
    stale = [path for path, text in new.items() if not path.exists() or path.read_text() != text]
    if arguments == ["--check"]:
        for path in stale:
            print(f"{path.relative_to(REPOSITORY)} is out of date; run tools/monitoring.py", file=sys.stderr)
        return int(bool(stale))
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(new[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
