"""Energy and carbon of tokens, beside figures that were reckoned by hand."""

from typing import Any

import pytest

from convoy.benchmark.analysis.model import EnergyFigures
from convoy.benchmark.fold import fold_cases
from convoy.benchmark.page import benchmark_page
from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
from convoy.catalog.energy import grid_intensity, pue
from convoy.display.page import Heading, Table, Text
from tests.benchmark.results.cases import a_case
from tests.report.bench_cases import GPUS


def a_measured_case(region: str | None = "us-west-2", watts: float = 8000.0, **changed: Any) -> Case:
    """2,000 tokens in half a second, at 8 kW: half a token per joule."""
    facts: dict[str, Any] = {
        "suite": "utilisation",
        "baseline": None,
        "tokens_per_step": 2000,
        "hardware": GPUS,
        "config": {"cluster": {"region": region}},
        "values": {values.POWER_WATTS: watts, values.ENERGY_JOULES_PER_STEP: watts / 2},
    }
    return a_case(**(facts | changed))


def energy_of(case: Case) -> EnergyFigures:
    (found,) = fold_cases([case]).energy
    return found


def test_energy_follows_from_rate_and_power() -> None:
    found = energy_of(a_measured_case())
    assert found.watts == 8000.0
    assert found.tokens_per_joule.estimate == pytest.approx(0.5, rel=0.02)
    assert found.watt_hours_per_million_tokens.estimate == pytest.approx(2e6 / 3600, rel=0.02)
    rate = fold_cases([a_measured_case()]).groups[0].cases[0].tokens_per_second
    assert rate is not None
    assert found.tokens_per_joule.low == pytest.approx(rate.low / 8000)
    assert found.watt_hours_per_million_tokens.high == pytest.approx(1e6 / 3600 * 8000 / rate.low)
    assert found.tokens_per_joule.n == rate.n


def test_carbon_is_energy_times_pue_times_what_the_grid_emits() -> None:
    found = energy_of(a_measured_case())
    assert (found.pue, found.grid) == (pue("us-west-2"), grid_intensity("us-west-2"))
    assert found.grams_per_million_tokens is not None
    told = found.watt_hours_per_million_tokens
    assert found.grams_per_million_tokens.estimate == pytest.approx(told.estimate / 1000 * 1.12 * 119.76)
    assert found.grams_per_million_tokens.high == pytest.approx(told.high / 1000 * 1.12 * 119.76)
    assert found.why == ""


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"region": "ap-northeast-2"}, "no PUE of ap-northeast-2 is known"),
        ({"region": "ca-west-1"}, "no grid intensity of ca-west-1 is known"),
        ({"region": "xx-moon-1"}, "no PUE and no grid intensity of xx-moon-1 is known"),
        ({"region": None}, "cluster.region"),
        ({"hardware": GPUS.model_copy(update={"instance_type": None})}, "cluster.instance_type"),
    ],
)
def test_without_the_region_s_figures_there_is_no_carbon(changed: dict[str, Any], why: str) -> None:
    found = energy_of(a_measured_case(**changed))
    assert found.grams_per_million_tokens is None
    assert why in found.why
    assert found.tokens_per_joule.estimate > 0


def test_without_measured_power_there_is_neither_energy_nor_carbon() -> None:
    case = a_measured_case(values={})
    assert fold_cases([case]).energy == ()
    assert "Energy" not in [b.text for b in benchmark_page([case]).blocks if isinstance(b, Heading)]


def test_the_page_names_the_inputs_with_their_year_and_source() -> None:
    blocks = list(benchmark_page([a_measured_case(), a_measured_case(name="other", baseline="ours")]).blocks)
    start = next(i for i, block in enumerate(blocks) if isinstance(block, Heading) and block.text == "Energy")
    figures, inputs = [block for block in blocks[start:] if isinstance(block, Table)][:2]
    assert figures.headers[-1] == "gCO2e per million tokens"
    assert [row[0] for row in figures.rows] == ["utilisation-a1-ours", "utilisation-a1-other"]
    assert dict(zip(figures.headers, figures.rows[0], strict=True))["GPU power"] == "8000 W"
    assert [row[:4] for row in inputs.rows] == [
        ("PUE", "us-west-2", "1.12", "2025"),
        ("Grid intensity", "us-west-2", "120 gCO2e/kWh", "2023"),
    ]
    assert all("real-time-cloud" in row[-1] for row in inputs.rows)


def test_the_page_says_why_there_is_no_carbon() -> None:
    blocks = benchmark_page([a_measured_case(region="xx-moon-1")]).blocks
    assert any(isinstance(block, Text) and "xx-moon-1" in block.text for block in blocks)
    tables = [block for block in blocks if isinstance(block, Table)]
    assert not any("gCO2e per million tokens" in table.headers for table in tables)
