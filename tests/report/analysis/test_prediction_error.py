"""A prediction stands beside what means the same, with its error; what does not is not compared."""

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from convoy.config.loader import read_overrides, resolve
from convoy.display.page import Heading, Table, Text
from convoy.job.events.registry import (
    CheckpointSaved,
    Environment,
    Event,
    GenerationStarted,
    MemoryPeak,
    ModelBuilt,
    Rent,
    StepDone,
)
from convoy.planner.plan import plan as plan_of
from convoy.planner.plan_schema import Plan
from convoy.report.analysis.prediction_error import Comparison, comparisons, computing_seconds
from convoy.report.fold import fold
from convoy.report.pages.predicted_sections import predictions
from convoy.report.pages.train import final_page, live_page
from tests.report.plans import MACHINE, planned, rented, unknown
from tests.report.synthetic import (
    CONFIG,
    FLOPS_PER_TOKEN,
    STEP_SECONDS,
    TOKENS,
    Log,
    failed_job,
    finished_job,
    restarted_job,
    resumed_job,
    running_job,
)


def pairs(plan: Plan, events: list[Event]) -> dict[str, Comparison]:
    """Of the GPUs that were planned for."""
    return {each.what: each for each in comparisons(plan, fold(on_gpus(events), 170))}


def on_gpus(events: list[Event]) -> list[Event]:
    return [e.model_copy(update={"device": "cuda"}) if isinstance(e, MemoryPeak) else e for e in events]


def of_this_host() -> Plan:
    plan = planned()
    return plan.model_copy(update={"machines": replace(plan.machines, gpu="cpu")})


def test_a_step_and_its_parts_stand_beside_the_medians_without_warm_up() -> None:
    plan, found = planned(), pairs(planned(), finished_job())
    assert plan.step is not None
    step = found["step"]
    assert (step.predicted, step.n) == (plan.step.seconds, 165)
    assert step.measured == pytest.approx(STEP_SECONDS, rel=0.01)
    assert step.pct_error == pytest.approx(100 * (plan.step.seconds - step.measured) / step.measured)
    parts = [each for what, each in found.items() if what.startswith("of it ")]
    assert sum(each.predicted for each in parts) == pytest.approx(plan.step.seconds)
    assert sum(each.measured or 0 for each in parts) == pytest.approx(step.measured, rel=0.01)
    assert found["of it optimizer"].predicted == plan.step.parts["optimizer"]
    assert found["of it forward and backward"].measured == pytest.approx(0.88 * STEP_SECONDS, rel=0.01)


def test_a_part_that_nobody_named_is_in_forward_and_backward() -> None:
    plan = planned()
    assert plan.step is not None
    assert set(plan.step.parts) - set(computing_seconds(plan.step)) == {"optimizer", "step"}


def test_speed_and_utilisation_are_of_all_ranks_and_of_the_plan_s_peak() -> None:
    plan, found = planned(), pairs(planned(), finished_job())
    assert plan.step is not None
    rate = found["tokens per second"].measured
    assert rate == pytest.approx(TOKENS / STEP_SECONDS, rel=0.01)
    assert found["MFU"].measured == pytest.approx(FLOPS_PER_TOKEN * rate / 2 / plan.step.peak_flops)
    own = plan.model_copy(update={"measured": MACHINE})
    assert "share of matmul rate, at the job's sizes" in pairs(own, finished_job())


def test_tensors_are_compared_with_a_gpu_s_peak_and_not_with_a_process() -> None:
    name = "memory peak, of the highest rank"
    here = fold(finished_job(), 170)
    of_gpus = pairs(planned(), finished_job())[name]
    (of_hosts,) = [each for each in comparisons(of_this_host(), here) if each.what == name]
    assert of_gpus.measured == of_hosts.measured == 813_000_000
    assert of_gpus.n == 2
    assert of_gpus.pct_error is not None
    assert (of_hosts.pct_error, of_hosts.why_not) == (None, "planned are tensors, measured is the whole process")


def test_saves_are_those_beside_which_training_went_on() -> None:
    log = Log()
    log.start()
    for step, seconds in ((10, 0.1), (20, 0.3), (30, 0.2)):
        log.steps(step - 9, step)
        saved = CheckpointSaved(step=step, attempt="a", bytes=7, seconds=seconds, committed_seconds=2.0)
        log.add(saved, rank=0)
    found = pairs(planned(), log.events)
    stall, durable = found["save: training waits"], found["save: until all ranks know of it"]
    assert (stall.measured, stall.n, durable.measured) == (pytest.approx(0.2), 2, 2.0)
    assert found["checkpoint"].measured == 7


@pytest.mark.parametrize(("durable", "steps"), [(0.2, 2), (0.9, 2), (1.1, 3), (3.5, 5)])
def test_a_commit_is_known_of_at_the_end_of_the_first_step_that_begins_after_it(durable: float, steps: int) -> None:
    plan = planned()
    assert plan.step is not None
    assert plan.saves is not None
    saves = replace(plan.saves, durable_seconds=durable * plan.step.seconds)
    found = pairs(plan.model_copy(update={"saves": saves}), finished_job())
    assert found["save: until all ranks know of it"].predicted == pytest.approx(steps * plan.step.seconds)


END = {"all steps, with saves", "whole job", "cost"}


def test_the_end_is_measured_when_the_job_is_done() -> None:
    plan, going_on, done = planned(), pairs(planned(), running_job()), pairs(planned(), finished_job())
    assert plan.configured_market is not None
    assert {going_on[what].measured for what in END} == {None}
    assert done["whole job"].predicted == going_on["whole job"].predicted == plan.configured_market.seconds
    assert done["whole job"].measured == fold(finished_job(), 170).wall_seconds


def test_of_a_job_that_failed_there_is_no_end() -> None:
    assert not END & set(pairs(planned(), failed_job()))


def test_all_steps_but_the_first_are_compared_with_their_saves_and_without_evaluations() -> None:
    plan, trained = planned(), pairs(planned(), finished_job())["all steps, with saves"]
    assert plan.step is not None
    assert plan.saves is not None
    assert trained.n == 169
    assert trained.predicted == pytest.approx(169 * (plan.step.seconds + plan.saves.stall_seconds / 85))
    # Four steps warm up, taking half as long again; of two saves the last one comes after the last step.
    assert trained.measured == pytest.approx(171 * STEP_SECONDS + 0.2, rel=1e-3)


def test_steps_that_were_done_again_are_compared_with_as_many() -> None:
    trained = pairs(planned(), restarted_job())["all steps, with saves"]
    assert trained.n == 119 + 84
    assert trained.measured == pytest.approx((203 + 2 * 2) * STEP_SECONDS + 0.2, rel=1e-3)


def test_on_machines_of_one_s_own_there_is_no_cost_and_no_whole() -> None:
    found = pairs(planned().model_copy(update={"budget": None}), finished_job())
    assert not {"whole job", "cost"} & set(found)


def test_the_cost_of_the_ledger_stands_beside_the_planned_one() -> None:
    rent = Rent(
        instance="g5.xlarge", market="on_demand", region="us-east-1", usd_per_hour=1.0, price_date=date(2026, 11, 1)
    )
    log = Log(rents={0: rent, 1: rent})
    log.start()
    log.steps(1, 170)
    log.finish(170)
    paid, plan, ledger = pairs(planned(), log.events)["cost"], planned(), fold(log.events, 170).cost
    assert plan.configured_market is not None
    assert plan.configured_market.cost is not None
    assert ledger is not None
    assert ledger.total is not None
    assert (paid.predicted, paid.unit) == (plan.configured_market.cost.usd, "usd")
    assert paid.measured == float(ledger.total)


def test_with_other_ranks_than_planned_only_the_checkpoint_is_compared() -> None:
    plan, report = planned(nodes=4), fold(on_gpus(finished_job()), 170)
    assert [each.what for each in comparisons(plan, report)] == ["checkpoint"]
    assert Text("Planned for 4 ranks, and 2 trained: only what does not depend on that is compared.") in predictions(
        report, plan
    )


def two_gangs(**second: Any) -> list[Event]:
    """160 steps of 8 ranks, and the last 10 of 2 that take four times as long; all saves of the first stall ten times
    as long."""
    log = Log()
    log.start(world_size=8)
    log.steps(1, 160)
    long_ago = [_quicker(e) for e in log.events]
    log = Log(t=log.t + 10, events=long_ago)
    log.start(1, world_size=2, parent=(0, 160), attempt=1)
    log.steps(161, 170, every=165)
    log.finish(170)
    return [e.model_copy(update=second) if isinstance(e, GenerationStarted) and e.generation else e for e in log.events]


def _quicker(event: Event) -> Event:
    if isinstance(event, CheckpointSaved):
        return event.model_copy(update={"seconds": 2.0})
    if isinstance(event, StepDone):
        return event.model_copy(update={"seconds": event.seconds / 4})
    return event


def test_steps_and_saves_of_other_ranks_are_not_among_those_that_are_compared() -> None:
    found, plan = pairs(planned(), two_gangs()), planned()
    assert plan.step is not None
    trained = found["all steps, with saves"]
    assert (trained.n, trained.measured) == (9, pytest.approx(9 * STEP_SECONDS + 4 * 0.2 + 0.2, rel=0.02))
    assert found["save: training waits"].measured == pytest.approx(0.2)
    for what in ("whole job", "cost"):
        assert (found[what].pct_error, found[what].why_not) == (None, "8 ranks trained a part of it")


def test_steps_of_another_configuration_are_not_compared() -> None:
    plan = planned()
    assert plan.training
    log = [as_told(e, "before" if e.generation == 0 else plan.training) for e in resumed_job()]
    found = pairs(plan, log)
    assert (found["step"].n, found["all steps, with saves"].n) == (80, 84)
    assert found["whole job"].why_not == "a part of it was trained with another configuration"
    log = [as_told(e, plan.training if e.generation == 0 else "after") for e in resumed_job()]
    assert list(pairs(plan, log)) == ["checkpoint"]
    report = fold(on_gpus(log), 170)
    said = "Planned of another configuration than the newest steps had: only what does not depend on that is compared."
    assert Text(said) in predictions(report, plan)


def as_told(event: Event, training: str) -> Event:
    return event.model_copy(update={"training": training}) if isinstance(event, GenerationStarted) else event


def test_what_an_older_log_does_not_tell_is_taken_to_be_as_planned() -> None:
    plan = planned()
    for first, second in (("", plan.training), (plan.training, "")):
        found = pairs(plan, [as_told(e, second if e.generation else first) for e in resumed_job()])
        assert (found["step"].n, found["whole job"].why_not) == (pairs(plan, resumed_job())["step"].n, "")


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (finished_job(), "Planned for A10G, and AMD EPYC 7R13 computes"),
        (
            [e.model_copy(update={"device": "NVIDIA H100 80GB HBM3"}) if isinstance(e, Environment) else e
             for e in finished_job() if not isinstance(e, MemoryPeak)],
            "Planned for A10G, and NVIDIA H100 80GB HBM3 computes",
        ),
    ],
)  # fmt: skip
def test_what_another_device_took_is_not_compared(log: list[Event], why: str) -> None:
    report, plan = fold(log, 170), planned()
    assert [each.what for each in comparisons(plan, report)] == ["checkpoint"]
    assert Text(f"{why}: only what does not depend on that is compared.") in predictions(report, plan)


def test_without_the_operations_of_a_token_there_is_no_utilisation() -> None:
    found = pairs(planned(), [e for e in finished_job() if not isinstance(e, ModelBuilt)])
    assert (found["MFU"].measured, found["MFU"].pct_error) == (None, None)
    assert found["tokens per second"].measured is not None


@pytest.mark.parametrize("words", ["data.packing=false", "optimizer.fused=false", "train.prefetch_steps=0"])
def test_what_no_formula_of_a_step_has_leaves_it_without_an_error(words: str) -> None:
    plan = plan_of(resolve(rented().model_dump(mode="json"), read_overrides(words)))
    found = pairs(plan, finished_job())
    for what in ("step", "tokens per second", "MFU", "of it optimizer", "all steps, with saves", "whole job", "cost"):
        assert (found[what].pct_error, found[what].why_not) == (None, plan.unmodelled), what
    assert found["memory peak, of the highest rank"].pct_error is not None
    assert found["save: training waits"].pct_error is not None
    *_, notes = predictions(fold(on_gpus(finished_job()), 170), plan)
    assert isinstance(notes, Text)
    assert notes.text.count(plan.unmodelled) == 1


def test_before_anything_is_measured_the_plan_stands_there_alone() -> None:
    log = Log()
    log.start()
    found = pairs(planned(), log.events)
    assert {"step", "tokens per second", "MFU", "checkpoint"} <= set(found)
    assert {each.measured for each in found.values()} == {None}
    assert {each.pct_error for each in found.values()} == {None}


def test_the_section_has_a_row_for_each_with_its_error_and_its_count() -> None:
    plan = planned()
    assert plan.step is not None
    heading, told, table, parts, notes = predictions(fold(on_gpus(finished_job()), 170), plan)
    assert heading == Heading("Predicted and measured")
    assert isinstance(table, Table)
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["step"][3] == "165"
    assert rows["step"][2].startswith("-")
    assert rows["tokens per second"][2].startswith("+")
    assert rows["save: until all ranks know of it"][1:] == ("not measured", "", "")
    assert isinstance(told, Text)
    assert told.text.startswith("Planned from the configuration and the catalog")
    assert isinstance(parts, Text)
    assert "matrix products" in parts.text
    assert isinstance(notes, Text)
    assert "without the first 5" in notes.text


def test_the_section_says_that_the_machine_was_measured_and_that_no_step_was() -> None:
    _, told, *_ = predictions(fold(running_job(), 170), planned().model_copy(update={"measured": MACHINE}))
    assert isinstance(told, Text)
    assert "this machine's matmul, memory and collectives" in told.text
    assert "no step's time is in it" in told.text


def test_a_run_that_may_not_fit_says_so() -> None:
    plan = planned()
    assert plan.memory is not None
    full = replace(plan.memory, share=0.95, reliable=False)
    blocks = predictions(fold(running_job(), 170), plan.model_copy(update={"memory": full}))
    (said,) = [block.text for block in blocks if isinstance(block, Text) and "By its plan" in block.text]
    assert said.endswith("takes 95% of what a rank has: above 90 % the estimate cannot say whether it fits.")


def test_what_is_not_planned_is_named_with_the_reason() -> None:
    *_, notes = predictions(fold(running_job(), 170), unknown())
    assert isinstance(notes, Text)
    assert "Not predicted: step (cpu: its fp32 peak is not in the catalog, so no time can be planned)." in notes.text
    assert "saves" not in notes.text


def test_both_pages_have_the_section_where_there_is_a_plan() -> None:
    report = fold(finished_job(), 170)
    for plan in (planned(), None):
        for page in (live_page(report, CONFIG, plan), final_page(report, CONFIG, plan=plan)):
            titles = [block.text for block in page.blocks if isinstance(block, Heading)]
            assert ("Predicted and measured" in titles) == (plan is not None)
