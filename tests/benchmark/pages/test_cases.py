"""Where steps, cores and GPUs go, as the page shows it."""

from typing import Any

from convoy.benchmark.page import benchmark_page
from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
from convoy.display.page import Chart, Table
from tests.benchmark.cases import a_case, replaced
from tests.benchmark.reading import below, headings, row

SHARES = (0.3, 0.4, 0.1, 0.05, 0.02, 0.13)
SEEN = {
    **dict(zip(values.SHARES.values(), SHARES, strict=True)),
    values.COMMUNICATION_HIDDEN: 0.2,
    values.USER_CPU_SECONDS: 0.25,
    values.SYSTEM_CPU_SECONDS: 0.031,
    values.VOLUNTARY_SWITCHES: 120.0,
    values.INVOLUNTARY_SWITCHES: 3.5,
    values.CPU_UTILISATION: 0.71,
}


def utilisation(**more: float) -> list[Case]:
    shared: dict[str, Any] = {"suite": "utilisation", "values": SEEN | more}
    return [
        a_case("not pinned", 0.5, seed=1, baseline=None, **shared),
        a_case("pinned", 0.45, seed=2, **(shared | {"baseline": "not pinned"})),
    ]


def shown(cases: list[Case], kind: type) -> list[Any]:
    return below(benchmark_page(cases), "Utilisation", kind)


def test_the_effect_of_pinning_stands_with_its_interval() -> None:
    told = row(shown(utilisation(), Table)[0], "pinned")
    assert told["Speedup"].startswith("1.1")
    assert " to " in told["Speedup"]


def test_parts_of_the_step_make_a_bar_of_all_of_it() -> None:
    (chart,) = [chart for chart in shown(utilisation(), Chart) if chart.title == "Shares of the step"]
    assert {name: round(total, 9) for name, (total,) in chart.series.items()} == {"not pinned": 1.0, "pinned": 1.0}
    drawn = chart.spec["data"]["values"]
    assert {each["part"]: round(each["value"], 6) for each in drawn if each["name"] == "pinned"} == {
        "forward": 30, "backward": 40, "optimizer": 10, "communication": 5, "data": 2, "idle": 13,
    }  # fmt: skip
    assert chart.spec["encoding"]["x"]["title"] == "%"
    assert row(shown(utilisation(), Table)[1], "pinned") == {
        "Case": "pinned", "forward": "30.0 %", "backward": "40.0 %", "optimizer": "10.0 %", "communication": "5.00 %",
        "data": "2.00 %", "idle": "13.0 %", "Communication hidden": "20.0 %",
    }  # fmt: skip


def test_the_host_s_figures_stand_without_those_of_a_gpu_that_is_not_there() -> None:
    assert row(shown(utilisation(), Table)[2], "pinned") == {
        "Case": "pinned", "User CPU": "250 ms", "System CPU": "31.0 ms", "Voluntary switches": "120",
        "Involuntary switches": "3.50", "CPU utilisation": "71.0 %",
    }  # fmt: skip
    told = row(shown(utilisation(**{values.GPU_UTILISATION: 0.93}), Table)[2], "pinned")
    assert told["GPU utilisation"] == "93.0 %"


def test_none_of_them_is_shown_a_second_time() -> None:
    assert "Further figures" not in headings(benchmark_page(utilisation()))


def test_a_case_without_a_trace_has_no_bar() -> None:
    cases = [replaced(case, values={values.CPU_UTILISATION: 0.5}) for case in utilisation()]
    assert "Shares of the step" not in [chart.title for chart in shown(cases, Chart)]
    assert row(shown(cases, Table)[1], "pinned") == {"Case": "pinned", "CPU utilisation": "50.0 %"}
