"""Benchmarks of several folders on one page, none of which touches another's figures."""

from collections.abc import Mapping
from typing import Any

import pytest

from convoy.benchmark.fold import fold_cases
from convoy.benchmark.page import BenchReports, benchmark_page, combined_cost_report, page_of_several
from convoy.benchmark.pages.cost import cost_section
from convoy.benchmark.results.case import Case
from convoy.display.page import Callout, Chart, Table, Text, Values
from tests.benchmark.cases import GPU_CONFIG, GPUS, a_case, replaced, strategies, whole
from tests.benchmark.reading import below, headings, of

COST = "Cost and time to train (computed)"

P5 = replaced(GPUS, device="NVIDIA H100 80GB HBM3", instance_type="p5.48xlarge", peak_tflops=989.0)


def on_p5() -> list[Case]:
    """The same cases under the same keys, three times as fast, on other machines."""
    faster: list[Case] = []
    for case in strategies():
        blocks = tuple(replaced(block, seconds=block.seconds / 3) for block in case.blocks)
        faster.append(replaced(case, hardware=P5, blocks=blocks))
    return faster


def reports(folders: Mapping[str, list[Case]]) -> BenchReports:
    return BenchReports(folders={name: fold_cases(cases) for name, cases in folders.items()})


def test_time_and_cost_on_all_machines_are_in_one_table() -> None:
    page = page_of_several(reports({"p4d": strategies(), "p5": on_p5()}))
    assert [text for text in headings(page) if "Cost" in text] == [COST]
    offers, training = below(page, COST, Table)
    machines = {row[1] for row in offers.rows}
    assert machines == {"4 × p4d.24xlarge (p4d), us-east-1", "4 × p5.48xlarge (p5), us-east-1"}
    hours = {row[1]: row[4] for row in training.rows if row[3] == "100 B"}
    assert set(hours) == {"4 × p4d.24xlarge (p4d)", "4 × p5.48xlarge (p5)"}
    assert hours["4 × p4d.24xlarge (p4d)"] != hours["4 × p5.48xlarge (p5)"]


def test_models_stand_together_and_the_same_machines_of_two_folders_are_two_rows() -> None:
    small: dict[str, Any] = {"baseline": None, "hardware": GPUS, "config": GPU_CONFIG}
    monday = [*strategies(), a_case(model="a", group="a", **small)]
    found = combined_cost_report(reports({"monday": monday, "tuesday": monday})).costs
    assert [(cost.model, cost.machines) for cost in found] == [
        ("a", "4 × p4d.24xlarge (monday)"),
        ("a", "4 × p4d.24xlarge (tuesday)"),
        ("gpt-1b", "4 × p4d.24xlarge (monday)"),
        ("gpt-1b", "4 × p4d.24xlarge (tuesday)"),
    ]


def test_cases_of_one_key_keep_to_their_own_folder() -> None:
    """All that a folder's page has by itself, but for its costs, is under its name as it was."""
    folders = {"p4d": whole(), "p5": [*whole()[:8], *on_p5()]}
    page = page_of_several(reports(folders))
    for name, cases in folders.items():
        alone = benchmark_page(cases)
        assert f"{name}: Provenance" in headings(page)
        for heading in headings(alone)[1:]:
            if heading != COST:
                assert below(page, f"{name}: {heading}") == below(alone, heading)
        (i,) = [i for i, b in enumerate(alone.blocks) if isinstance(b, Values)]
        assert below(page, name) == list(alone.blocks[i - 1 : i + 1])  # its conclusions, its numbers


def test_no_curve_or_chart_has_cases_of_two_folders() -> None:
    page = page_of_several(reports({"a": whole(), "b": whole()}))
    assert len(of(page, Chart)) == 2 * len(of(benchmark_page(whole()), Chart))


def test_warnings_of_every_folder_stand_above_all_numbers_with_its_name() -> None:
    page = page_of_several(reports({"p4d": strategies()[:2], "p5": on_p5()}))
    first = next(i for i, block in enumerate(page.blocks) if isinstance(block, Values | Table))
    warned = [block.title for block in page.blocks[:first] if isinstance(block, Callout)]
    assert warned == ["p5: zero-3 (strategies, gpt-1b): losses differ from those of ddp"]
    about = [block.text for block in page.blocks[:first] if isinstance(block, Text)]
    assert about[0].startswith("p4d: 4 × p4d.24xlarge, 32 ranks")
    assert about[1].startswith("p5: 4 × p5.48xlarge, 32 ranks")


@pytest.mark.parametrize("order", [1, -1])
def test_the_same_folders_give_the_same_page_whatever_the_order_of_their_files(order: int) -> None:
    page = page_of_several(reports({"p4d": whole()[::order], "p5": on_p5()[::order]}))
    assert page == page_of_several(reports({"p4d": whole(), "p5": on_p5()}))


def test_a_folder_without_a_rate_has_its_place_and_no_cost() -> None:
    failed = [a_case(status="failed", reason="no room", blocks=())]
    both = reports({"p4d": strategies(), "p5": failed})
    assert cost_section(combined_cost_report(both)) != ()
    page = page_of_several(both)
    (table,) = below(page, "p5: Refused and failed", Table)
    assert table.rows[0][-1] == "no room"
