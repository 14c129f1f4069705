"""One object in the registry makes a suite: everything that shows, plans or checks suites reads it from there."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click.testing
import pytest

from convoy.benchmark.analysis.report import BenchReport
from convoy.benchmark.fold import fold_cases
from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.benchmark.page import page_of
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.files import write_case
from convoy.benchmark.suites import registry
from convoy.catalog.prices import PriceBook
from convoy.cli.main import main
from convoy.config.benchmark import BenchConfig
from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.display.html import draw_svg, to_html
from convoy.display.markdown import to_markdown
from convoy.display.page import Block, Heading, Page, Table
from convoy.launch.benchmark.split import Share, describe_bench, shares_of
from metaflow_extensions.convoy.plugins.cards.convoy.components import components_of
from tests.benchmark.cases import a_case


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    for model, run in runs.items():
        variants = (VariantSpec(name="in a rack"), VariantSpec(name="under water"))
        yield COOLING.make_group(model, run, config.measure, variants)


def figures(cases: Sequence[Case], prices: PriceBook) -> dict[str, object]:
    return {"cooling": {case.name: case.values["kelvin"] for case in cases if case.suite == COOLING.name}}


def sections(report: BenchReport) -> tuple[Block, ...]:
    kelvin = (report.model_extra or {})["cooling"]
    rows = tuple((name, f"{value:g} K") for name, value in kelvin.items())
    return (Heading("Temperatures"), Table(("Case", "Reached"), rows)) if rows else ()


COOLING = Suite(
    name="cooling",
    title="Cooling, compared",
    meaning="what each way to cool a machine brings",
    groups=groups,
    fewest_ranks=2,
    measures=frozenset({"memory"}),
    figures=figures,
    sections=sections,
)


@pytest.fixture(autouse=True)
def _with_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SUITES", (*registry.SUITES, COOLING))


def measured(seconds: float = 0.5) -> list[Case]:
    rack = a_case("in a rack", seconds, suite="cooling", group="cooling-tiny", baseline=None, values={"kelvin": 331})
    shared = {"suite": "cooling", "group": "cooling-tiny", "baseline": "in a rack"}
    return [rack, a_case("under water", 0.8 * seconds, seed=1, values={"kelvin": 293}, **shared)]


def page() -> Page:
    return page_of(fold_cases(measured()))


def planned(*suites: str, nodes: int = 2) -> list[Share]:
    return shares_of(BenchConfig(suites=suites, run={"cluster": {"nodes": nodes}}))


def test_every_suite_of_the_default_benchmark_exists() -> None:
    others = {"frameworks", "memory", "network", "utilisation", "workloads", COOLING.name}
    assert set(BenchConfig().suites) == {suite.name for suite in registry.SUITES} - others


def test_it_is_a_choice_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"^suites.0 = colling: must be one of .*, cooling; did you mean cooling\?$"):
        planned("colling")


def test_the_dry_run_describes_its_gangs() -> None:
    (share,) = planned("throughput", "cooling")
    lines = describe_bench([share], share.groups[0].run).splitlines()
    assert "cooling-tiny: 2 (2 nodes × 1) ranks: in a rack; under water" in lines
    assert [group.measures for group in share.groups] == [frozenset(), {"memory"}]


def test_a_gang_that_is_too_small_for_it_has_none_of_its_groups() -> None:
    with pytest.raises(ConfigError, match=r"^suites = cooling: these need more than 1 rank"):
        planned("cooling", nodes=1)


def test_its_figures_are_in_the_json() -> None:
    report = json.loads(fold_cases(measured()).model_dump_json())
    assert report["cooling"] == {"in a rack": 331, "under water": 293}
    assert [group["suite"] for group in report["groups"]] == ["cooling"]


@pytest.mark.parametrize(
    "drawn",
    [
        lambda: to_markdown(page()),
        lambda: to_html(page(), draw_svg),
        lambda: json.dumps([component.render() for component in components_of(page())]),
    ],
    ids=["Markdown", "HTML", "card"],
)
def test_its_groups_and_its_sections_are_on_each_page(drawn) -> None:
    text = drawn()
    for part in ("Cooling, compared", "under water", "Temperatures", "293 K"):
        assert part in text


def test_its_runs_are_compared(tmp_path: Path) -> None:
    for name, seconds in (("first", 0.5), ("second", 0.6)):
        for case in measured(seconds):
            write_case(tmp_path / name, case)
    words = ["compare", str(tmp_path / "first"), str(tmp_path / "second")]
    done = click.testing.CliRunner().invoke(main, words, env={"COLUMNS": "200"})
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("cooling-tiny-under water")]
    assert row.rstrip().endswith("SLOWER in this run")
