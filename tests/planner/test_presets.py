"""What the comments of the training presets say is what the planner says of them."""

import re
from pathlib import Path

import pytest

from convoy.catalog.instances import interruption_band
from tests.planner.test_plan import PRESETS, planned

NEAR = 0.1
"""Constants are fitted again from time to time; a comment is rounded, and has its day."""


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_its_memory_its_step_and_its_time_are_those_of_its_plan(path: Path) -> None:
    told, words = planned(path.stem), text(path)
    assert told.memory is not None
    assert told.step is not None
    assert told.configured_market is not None
    assert f"{told.memory.share:.0%}".replace("%", " % of the") in words
    seconds = figure(words, r"about ([\d,]+) s per step") or 60 * (figure(words, r"about ([\d,]+) min per step") or 0)
    assert seconds == pytest.approx(told.step.seconds, rel=NEAR)
    hours = figure(words, r"per step, ([\d,]+) h") or 24 * (figure(words, r"per step, ([\d,]+) days") or 0)
    assert hours == pytest.approx(told.configured_market.seconds / 3600, rel=NEAR)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_its_saves_and_interruptions_are_those_of_its_plan(path: Path) -> None:
    saves, words, machines = planned(path.stem).saves, text(path), planned(path.stem).machines
    assert saves is not None
    assert saves.mtbf_seconds is not None
    assert "Near the optimum of `convoy plan`" in words
    assert saves.every_steps == pytest.approx(saves.best_every_steps, rel=NEAR)
    assert figure(words, r"a save pauses training for ([\d.]+) s") == pytest.approx(saves.stall_seconds, abs=0.06)
    assert figure(words, r"every (\d+) days") == pytest.approx(saves.mtbf_seconds / 86400, abs=0.6)
    if machines.market == "spot":
        band = interruption_band(str(machines.instance_type))
        assert band is not None
        assert f"and {machines.nodes} nodes are interrupted about every" in words
        assert f"{100 * band.low:g} to {100 * band.high:g} % of such machines reclaimed a month" in words


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_its_break_even_is_that_of_its_plan(path: Path) -> None:
    """Of GPT 7B on p4d it is that of sharding over all nodes, which the comment speaks against."""
    over = "parallel.strategy=fsdp parallel.shard_size=null" if path.stem == "gpt-7b-p4d" else ""
    even, words = planned(path.stem, over).break_even, text(path)
    assert even is not None
    hides = r"hide the gathers (?:(?:only )?above|when each GPU processes at least) ([\d,]+)"
    found = figure(words, hides) or figure(words, r"takes ([\d,]+) to hide the gathers")
    assert found == pytest.approx(even.tokens_per_pass, rel=NEAR)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_price_has_its_day_and_the_cost_is_that_of_its_plan(path: Path) -> None:
    told, words = planned(path.stem), text(path)
    assert "predicted by `convoy plan` on 20" in words
    if told.machines.market == "capacity_block":
        assert figure(words, r"([\d,]+) USD for") is None
        return
    assert told.configured_market is not None
    cost = told.configured_market.cost
    assert cost is not None
    assert str(cost.price_date) in words
    assert figure(words, r"([\d,]+) USD/h") == pytest.approx(told.machines.nodes * cost.usd_per_hour, abs=0.6)
    assert figure(words, r"([\d,]+) USD for") == pytest.approx(cost.usd, rel=NEAR)


def text(path: Path) -> str:
    return " ".join(path.read_text().replace("#", " ").split())


def figure(words: str, pattern: str) -> float | None:
    found = re.search(pattern, words)
    return None if found is None else float(found[1].replace(",", ""))
