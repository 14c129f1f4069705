"""A benchmark's own figures are audited as anybody else's."""

import pytest

from convoy.benchmark.analysis.audit import audit_report, audit_section
from convoy.benchmark.fold import fold_cases
from convoy.display.page import Table, Text
from convoy.stats.interval import Interval
from tests.benchmark.cases import replaced, whole

pytestmark = pytest.mark.campaign


def _times(figure: Interval, factor: float) -> Interval:
    return Interval(estimate=figure.estimate * factor, low=figure.low * factor, high=figure.high * factor, n=figure.n)


def test_figures_of_a_benchmark_agree() -> None:
    report = fold_cases(whole())
    found = audit_report(report)
    assert found.findings == ()
    assert found.claims >= 50
    (text,) = [block for block in audit_section(report) if isinstance(block, Text)]
    assert text.text.endswith("agree.")


def test_a_wrong_step_time_is_told() -> None:
    report = fold_cases(whole())
    group, *others = report.groups
    case, *rest = group.cases
    wrong = replaced(case, step_seconds=_times(case.step_seconds, 1.2))
    told = replaced(report, groups=(replaced(group, cases=(wrong, *rest)), *others))
    assert not audit_report(told).consistent
    (table,) = [block for block in audit_section(told) if isinstance(block, Table)]
    assert table.rows[0][0] == "Contradiction"


def test_of_nothing_nothing_is_told() -> None:
    assert audit_section(fold_cases([])) == ()
