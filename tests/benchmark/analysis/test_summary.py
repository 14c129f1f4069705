"""A line for each model of several benchmarks, with figures reckoned by hand from its cases."""

import json
from pathlib import Path

import pytest

from convoy.benchmark.analysis.summary import summarise
from convoy.benchmark.fold import fold_cases
from convoy.benchmark.pages.summary import summary_page
from convoy.benchmark.results.files import write_case
from convoy.display.markdown import to_markdown
from tests.benchmark.cases import GPU_CONFIG, GPUS, a_case, replaced, scaling, strategies, throughput
from tests.cli import convoy


def test_a_line_has_speed_up_memory_scaling_and_cost() -> None:
    """Ours is twice as fast as the baseline; 0.8 GB of 40 GiB; 4 p4d on demand for a million tokens at 4,096 a second;
    2 ranks at 90 % of one."""
    gpus = [replaced(case, hardware=GPUS, config=GPU_CONFIG) for case in throughput()]
    [line] = summarise({"p4d": fold_cases([*gpus, *scaling()])}).models
    assert (line.folder, line.model, line.case, line.baseline) == ("p4d", "tiny", "throughput-a1-ours", "baseline")
    assert line.speedup is not None
    assert line.speedup.estimate == pytest.approx(2.0, rel=0.02)
    assert line.memory_share == pytest.approx(800_000_000 / (40 * 2**30), rel=0.01)
    assert line.scaling is not None
    assert (line.scaling.estimate, line.scaled_to) == (pytest.approx(0.9, rel=0.02), 2)
    assert line.offer is not None
    expected = 4 * 21.9576 / 3600 / 4096 * 1e6
    assert line.offer.usd_per_million_tokens.estimate == pytest.approx(expected, rel=0.02)
    assert line.flops_per_second == pytest.approx(4096 * 2.0e7, rel=0.02)


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
