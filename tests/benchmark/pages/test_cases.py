"""Where steps, cores and GPUs go, as the page shows it."""

from typing import Any

from convoy.benchmark.page import benchmark_page
from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
from convoy.display.page import Chart, Table
from tests.benchmark.cases import a_case, replaced
from tests.benchmark.reading import below, row

SHARES = (0.3, 0.4, 0.1, 0.05, 0.02, 0.13)
SEEN = {**dict(zip(values.SHARES.values(), SHARES, strict=True)), values.COMMUNICATION_HIDDEN: 0.2}


def utilisation(**more: float) -> list[Case]:
    shared: dict[str, Any] = {"suite": "utilisation", "values": SEEN | more}
    return [
        a_case("not pinned", 0.5, seed=1, baseline=None, **shared),
        a_case("pinned", 0.45, seed=2, **(shared | {"baseline": "not pinned"})),
    ]


def shown(cases: list[Case], kind: type) -> list[Any]:
    return below(benchmark_page(cases), "Utilisation", kind)


def test_the_utilisation_of_a_gpu_stands_with_the_host_s() -> None:
    told = row(shown(utilisation(**{values.GPU_UTILISATION: 0.93}), Table)[2], "pinned")
    assert told["GPU utilisation"] == "93.0 %"


def test_a_case_without_a_trace_has_no_bar() -> None:
    cases = [replaced(case, values={values.CPU_UTILISATION: 0.5}) for case in utilisation()]
    assert "Shares of the step" not in [chart.title for chart in shown(cases, Chart)]
    assert row(shown(cases, Table)[1], "pinned") == {"Case": "pinned", "CPU utilisation": "50.0 %"}
