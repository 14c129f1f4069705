"""The dashboard and the table of metrics are made from the metrics themselves, and name no others."""

import json
import re
import subprocess
import sys

from convoy.launch.monitor.metrics import METRICS
from tests.flows.places import REPOSITORY
from tests.tools import tool

DASHBOARD = REPOSITORY / "infra" / "grafana" / "convoy.json"


def test_the_committed_dashboard_and_table_are_up_to_date() -> None:
    check = subprocess.run(
        [sys.executable, REPOSITORY / "tools" / "monitoring.py", "--check"], capture_output=True, text=True
    )
    assert (check.returncode, check.stderr) == (0, "")


def test_its_queries_name_every_metric_and_nothing_else() -> None:
    made = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in made["panels"] for target in panel.get("targets", [])]
    queries += [variable["query"]["query"] for variable in made["templating"]["list"] if variable["type"] == "query"]
    named = {name for query in queries for name in re.findall(r"\bconvoy_\w+(?=\{|,)", query)}
    assert named == {metric.sample_name for metric in METRICS}


def test_counters_of_bytes_are_shown_as_rates_and_gauges_as_they_are() -> None:
    monitoring = tool("monitoring")
    for metric in METRICS:
        assert monitoring.query(metric).startswith("rate(") is metric.is_rate
        assert not metric.is_rate or metric.kind == "counter"


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
