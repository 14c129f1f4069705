"""What is told of a plan where a run is started."""

from dataclasses import replace

import pytest

from convoy.planner.pages.plan import first_warning, plan_in_one_line, plan_summary
from convoy.planner.plan_schema import Plan
from tests.planner.test_plan import planned
from tests.report.plans import unknown


def test_one_line_has_what_decides() -> None:
    line = plan_in_one_line(planned("gpt-7b-p4d"))
    assert "\n" not in line
    for part in ("memory: ", "step: ", "MFU: ", "tokens: ", "USD", "saves: best every"):
        assert part in line, part


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        (
            "gpt-175b-p4d",
            "cluster.nodes=16 train.micro_batch=1 parallel.wrap=block",
            "does not fit: 5.7 GiB more",
        ),
        ("custom-30b-p4d", "cluster.nodes=2 train.micro_batch=1", "may not fit: takes 95% of what a rank has"),
    ],
)
def test_nobody_should_count_on_a_plan_above_90_percent(name: str, words: str, told: str) -> None:
    plan = planned(name, words)
    said = first_warning(plan)
    assert said is not None
    assert said.startswith(told)
    assert plan_in_one_line(plan).startswith(said)


def test_a_host_without_memory_for_the_staged_copies_is_warned_of() -> None:
    plan = unknown()
    assert plan.host_memory is not None
    host = replace(plan.host_memory, capacity_bytes=1, fits=False)
    said = first_warning(plan.model_copy(update={"host_memory": host}))
    assert said is not None
    assert said.startswith("does not fit: ")
    assert said.endswith("more of its own memory than a machine has")


def test_what_is_planned_well_has_no_warning() -> None:
    assert first_warning(planned("gpt-7b-p4d")) is None
    assert first_warning(unknown()) is None


def test_of_a_machine_that_nobody_knows_there_is_memory_and_why_there_is_no_more() -> None:
    lines = plan_summary(unknown())
    assert list(lines) == ["memory", "not planned"]
    assert lines["not planned"] == "step (cpu: its fp32 peak is not in the catalog, so no time can be planned)"


def test_of_a_model_of_one_s_own_the_line_says_why_there_is_nothing() -> None:
    plan: Plan = planned("gpt-7b-p4d", "'model={build: a.b:c, vocab_size: 50257, max_sequence_length: 2048}'")
    assert plan_in_one_line(plan) == "not planned: memory, step (model.build = a.b:c: nothing is known of it)"
    assert first_warning(plan) is None
