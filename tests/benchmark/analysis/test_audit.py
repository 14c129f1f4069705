"""A benchmark's own figures are audited as anybody else's."""

from typing import Any

import pytest

from convoy.benchmark.analysis.audit import audited, own_figures
from convoy.benchmark.analysis.model import BenchReport, CostFigures
from convoy.benchmark.fold import fold_cases
from convoy.display.page import Table, Text
from convoy.stats.interval import Interval
from tests.report.bench_cases import whole

pytestmark = pytest.mark.campaign


def _times(figure: Interval, factor: float) -> Interval:
    return Interval(estimate=figure.estimate * factor, low=figure.low * factor, high=figure.high * factor, n=figure.n)


def _with_cost(report: BenchReport, cost: CostFigures, **update: Any) -> BenchReport:
    offer = cost.offers[0].model_copy(update=update)
    return report.model_copy(update={"costs": (cost.model_copy(update={"offers": (offer,)}),)})


def test_figures_of_a_benchmark_agree() -> None:
    report = fold_cases(whole())
    found = audited(report)
    assert found.findings == ()
    assert found.claims > 50
    (text,) = [block for block in own_figures(report) if isinstance(block, Text)]
    assert text.text.endswith("agree.")


def test_a_wrong_cost_is_told_with_its_arithmetic() -> None:
    report = fold_cases(whole())
    cost = next(each for each in report.costs if each.offers)
    wrong = _with_cost(report, cost, usd_per_million_tokens=_times(cost.offers[0].usd_per_million_tokens, 1.1))
    (table,) = [block for block in own_figures(wrong) if isinstance(block, Table)]
    assert all("per 1 M tokens" in row[1] for row in table.rows)
    assert table.rows[0][0] == "Contradiction"


def test_a_wrong_step_time_is_told() -> None:
    report = fold_cases(whole())
    group, *others = report.groups
    case, *rest = group.cases
    assert case.step_seconds is not None
    wrong = case.model_copy(update={"step_seconds": _times(case.step_seconds, 1.2)})
    told = report.model_copy(update={"groups": (group.model_copy(update={"cases": (wrong, *rest)}), *others)})
    assert not audited(told).consistent


def test_of_nothing_nothing_is_told() -> None:
    assert own_figures(fold_cases([])) == ()
