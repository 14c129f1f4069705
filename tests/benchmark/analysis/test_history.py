"""Cases beside earlier runs of the same."""

from datetime import timedelta

import numpy as np
import pytest

from convoy.benchmark.analysis.history import history_figures, rates_by_fingerprint
from convoy.benchmark.analysis.report import HistoryFigures
from convoy.benchmark.fold import fold_cases
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.fingerprint import fingerprint
from convoy.benchmark.results.network import seconds_name
from tests.benchmark.cases import a_case, replaced, runs_of

CASE = a_case(baseline=None)


def _history(rates: list[float]) -> HistoryFigures:
    (found,) = fold_cases([CASE], rates_by_fingerprint(runs_of(CASE, rates))).history or ()
    return found


def _noisy(mean: float, n: int, seed: int) -> list[float]:
    return [mean * float(1 + 0.005 * x) for x in np.random.default_rng(seed).standard_normal(n)]


def test_a_run_that_is_slower_than_before_is_a_regression_where_it_began() -> None:
    found = _history([*_noisy(4600, 12, 1), *_noisy(4100, 4, 2)])
    (change,) = found.changes
    assert change.at == 12
    assert change.effect == pytest.approx(4100 / 4600 - 1, abs=0.02)
    assert found.detectable is None  # too few runs since then to see another change


def test_runs_without_a_change_tell_how_small_a_one_would_have_shown() -> None:
    found = _history(_noisy(4096, 14, 1))
    assert found.changes == ()
    assert 0.001 < found.detectable < 0.1


def test_the_own_run_is_the_newest_and_counts_once() -> None:
    found = _history([4000.0, 4100.0])
    assert [run.measured for run in found.runs] == sorted(run.measured for run in found.runs)
    assert found.runs[-1].measured == CASE.provenance.measured
    (again,) = fold_cases([CASE], rates_by_fingerprint([*runs_of(CASE, [4000.0, 4100.0]), CASE])).history or ()
    assert again == found


def test_runs_of_another_fingerprint_are_of_no_history() -> None:
    other = a_case(baseline=None, model="gpt-7b")
    (found,) = fold_cases([CASE], rates_by_fingerprint(runs_of(other, [4000.0]))).history or ()
    assert len(found.runs) == 1


def test_what_has_no_rate_is_no_run() -> None:
    cases = [a_case(n=5), a_case(status="failed", blocks=()), a_case(tokens_per_step=0)]
    assert rates_by_fingerprint(cases) == {}
    assert list(rates_by_fingerprint([CASE])) == [f"{fingerprint(CASE)} {CASE.group}"]


def test_a_reference_of_several_gangs_is_one_run_in_the_history_of_each() -> None:
    later = replaced(CASE.provenance, measured=CASE.provenance.measured + timedelta(minutes=3))
    elsewhere = replaced(CASE, group="another", provenance=later)
    found = history_figures([CASE], rates_by_fingerprint([CASE, elsewhere]))
    assert [len(each.runs) for each in found] == [1]


def test_a_case_without_tokens_has_a_history_for_each_size() -> None:
    def run(day: int, seconds: float) -> Case:
        samples = {seconds_name(1024): (seconds,) * 6, seconds_name(2**20): (1024 * seconds,) * 6}
        when = replaced(CASE.provenance, measured=CASE.provenance.measured + timedelta(days=day))
        return replaced(CASE, tokens_per_step=0, blocks=(), samples=samples, provenance=when)

    past = [run(day, 1e-6 * (1 + 0.001 * (day % 3))) for day in range(12)]
    slower = [run(day, 2e-6) for day in range(12, 16)]
    small, large = history_figures([slower[-1]], rates_by_fingerprint([*past, *slower]))
    assert (small.size, large.size) == (1024, 2**20)
    assert small.runs[-1].bytes_per_second == pytest.approx(512e6)
    assert small.runs[-1].tokens_per_second is None
    assert [change.at for change in small.changes] == [12]
