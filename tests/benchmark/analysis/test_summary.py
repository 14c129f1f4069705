"""A line for each model of several benchmarks, with figures reckoned by hand from its cases."""

import json
from pathlib import Path

import pytest

from convoy.benchmark.analysis.summary import summarise
from convoy.benchmark.fold import fold_cases
from convoy.benchmark.pages.summary import summary_page
from convoy.benchmark.results.case import Case, Hardware
from convoy.benchmark.results.files import write_case
from convoy.display.markdown import to_markdown
from tests.benchmark.cases import GPU_CONFIG, GPUS, HARDWARE, a_case, replaced, scaling, strategies, throughput
from tests.cli import convoy


def on_machines(cases: list[Case], nodes: int, instance_type: str = "p4d.24xlarge") -> list[Case]:
    """The cases as of so many machines with 8 ranks each; those of fewer ranks than the others stay so."""
    most = max(case.hardware.ranks for case in cases)
    return [
        replaced(
            case,
            config=GPU_CONFIG,
            hardware=replaced(
                GPUS, instance_type=instance_type, nodes=nodes, ranks=8 * nodes * case.hardware.ranks // most,
                jobs=case.hardware.jobs,
            ),
        )
        for case in cases
    ]  # fmt: skip


def test_a_line_has_speed_up_memory_scaling_and_cost() -> None:
    """Ours is twice as fast as the baseline; 0.8 GB of 40 GiB; 4 p4d on demand for a million tokens at 4,096 a second;
    32 ranks at 90 % of 16."""
    gpus = on_machines(throughput(), 4)
    [line] = summarise({"p4d": fold_cases([*gpus, *on_machines(scaling(), 4)])}).models
    assert (line.folder, line.model, line.case, line.baseline) == ("p4d", "tiny", "throughput-a1-ours", "baseline")
    assert line.speedup is not None
    assert line.speedup.estimate == pytest.approx(2.0, rel=0.02)
    assert line.memory_share == pytest.approx(800_000_000 / (40 * 2**30), rel=0.01)
    assert line.scaling is not None
    assert (line.scaling.estimate, line.scaled_to) == (pytest.approx(0.9, rel=0.02), 32)
    assert line.offer is not None
    expected = 4 * 21.9576 / 3600 / 4096 * 1e6
    assert line.offer.usd_per_million_tokens.estimate == pytest.approx(expected, rel=0.02)
    assert line.flops_per_second == pytest.approx(4096 * 2.0e7, rel=0.02)


def test_machines_ranks_rate_and_cost_are_those_of_one_gang() -> None:
    """Throughput on 2 machines and scaling on 4: the line is of the former, with its price."""
    [line] = summarise({"p4d": fold_cases([*on_machines(throughput(), 2), *on_machines(scaling(), 4)])}).models
    assert (line.machines, line.ranks, line.case) == ("2 × p4d.24xlarge", 16, "throughput-a1-ours")
    assert line.offer is not None
    assert line.offer.usd_per_hour == pytest.approx(2 * 21.9576)
    assert line.scaled_to == 32


def test_each_kind_of_machine_has_a_line_with_its_own_scaling_and_cost() -> None:
    p5 = on_machines(throughput(), 1, "p5.48xlarge")
    report = fold_cases([*(replaced(case, group="b1") for case in p5), *on_machines(scaling(), 4)])
    lines = {line.machines: line for line in summarise({"both": report}).models}
    first, second = lines["p5.48xlarge"], lines["4 × p4d.24xlarge"]
    assert (first.case, first.scaled_to) == ("throughput-b1-ours", None)
    assert (second.case, second.scaled_to) == ("scaling-n2-weak", 32)
    assert first.offer is not None
    assert second.offer is not None
    assert second.offer.usd_per_hour == pytest.approx(4 * 21.9576)
    assert first.offer.usd_per_hour != second.offer.usd_per_hour


def test_a_group_that_was_refused_before_it_started_is_no_machine_of_its_own() -> None:
    """Such a case names no device."""
    nowhere = Hardware(device="", nodes=2, ranks=1, threads=1, cores=1, memory_bytes=0)
    refused = a_case(suite="strategies", group="s", status="refused", reason="no room", blocks=(), hardware=nowhere)
    one_rank = [replaced(case, hardware=replaced(HARDWARE, ranks=1)) for case in throughput()]
    first = replaced(refused, suite="throughput", group="a1", name="a refused one")
    [line] = summarise({"here": fold_cases([refused, first, *one_rank])}).models
    assert (line.machines, line.why) == (HARDWARE.device, "")


def test_several_benchmarks_stand_below_each_other_and_nothing_is_guessed() -> None:
    """On a CPU there is no share of GPU memory and no cost; a model of which nothing ran says why."""
    failed = a_case(model="huge", group="huge", status="refused", reason="needs 80 GB, has 40 GB", blocks=())
    summary = summarise({"here": fold_cases([*throughput(), failed]), "p4d": fold_cases(strategies())})
    lines = {(line.folder, line.model): line for line in summary.models}
    assert set(lines) == {("here", "tiny"), ("here", "huge"), ("p4d", "gpt-1b")}
    here, p4d = lines["here", "tiny"], lines["p4d", "gpt-1b"]
    assert (here.memory_share, here.offer, here.scaling) == (None, None, None)
    assert lines["here", "huge"].why == "needs 80 GB, has 40 GB"
    assert (p4d.baseline, p4d.speedup) == ("", None)
    text = to_markdown(summary_page(summary))
    assert "huge (here): needs 80 GB, has 40 GB." in text
    assert "not measured" in text
    assert "not known" in text


def test_a_case_that_computes_something_else_is_no_speed_up() -> None:
    wrong = a_case("baseline", 1.0, losses=(1.0,), baseline="ours", seed=9)
    [line] = summarise({"a": fold_cases([throughput()[0], wrong])}).models
    assert (line.baseline, line.speedup) == ("", None)


def test_the_command_prints_a_line_for_each_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for case in throughput():
            write_case(tmp_path / name, case)
    found = json.loads(convoy("bench", "summary", tmp_path / "a", tmp_path / "b", "--json").output)
    assert [line["folder"] for line in found["models"]] == ["a", "b"]
    twice = convoy("bench", "summary", tmp_path / "a", tmp_path / "a")
    assert (twice.exit_code, twice.output) == (2, f"convoy: {tmp_path / 'a'}: appears twice\n")
