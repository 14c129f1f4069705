"""The plan of a job is made once, kept below it, made again when the machine was measured, and stops no run."""

import json
from pathlib import Path
from typing import Any

import pytest

from convoy.catalog.measured import MeasuredMachine
from convoy.config.run import RunConfig
from convoy.launch import plans
from convoy.launch.flow import _plan, _say_plan
from convoy.launch.plans import NAME, JobPlan, planned, read_plan
from convoy.planner.plan import plan
from convoy.report.fold import fold
from convoy.report.train_report import TrainReport
from convoy.results.plan import Plan
from convoy.storage import StoreUnavailable
from convoy.storage.posix import PosixStore
from tests.planner.test_plan import preset
from tests.report import plans as made
from tests.report.synthetic import running_job

NOTHING = fold([])


@pytest.fixture
def job(tmp_path: Path) -> PosixStore:
    return PosixStore(tmp_path / "job")


def measured(machine: MeasuredMachine) -> TrainReport:
    report = fold(running_job(), 170)
    assert report.hardware is not None
    return report.model_copy(update={"hardware": report.hardware.model_copy(update={"machine": machine})})


def test_what_the_first_step_planned_is_kept_below_the_job(job: PosixStore) -> None:
    told = made.planned()
    assert JobPlan(job, made.rented(), told.model_dump(mode="json")).at(NOTHING) == told
    assert read_plan(job) == told
    assert json.loads(job.read(NAME))["model"] == "tiny"


def test_where_nobody_planned_it_is_planned(job: PosixStore) -> None:
    found = JobPlan(job, RunConfig()).at(NOTHING)
    assert found.memory is not None
    assert read_plan(job) == found


def test_of_a_plan_of_another_version_it_is_made_anew(job: PosixStore) -> None:
    job.write(NAME, b'{"schema_version": 9}')
    assert read_plan(job) is None
    assert JobPlan(job, RunConfig(), {"schema_version": 9}).at(NOTHING).model == "tiny"


def test_a_store_that_takes_nothing_costs_no_card(job: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, data: bytes) -> None:
        raise StoreUnavailable("No space left on device")

    monkeypatch.setattr(job, "write", full)
    assert JobPlan(job, RunConfig()).at(NOTHING).memory is not None
    assert read_plan(job) is None


def test_a_known_machine_is_not_planned_again(job: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = JobPlan(job, made.rented(), made.planned())
    monkeypatch.setattr(plans, "planned", None)
    assert kept.at(measured(made.MACHINE)).measured is None


def test_a_measurement_of_other_ranks_is_not_planned_from(job: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = JobPlan(job, RunConfig(), made.unknown())
    monkeypatch.setattr(plans, "planned", None)
    assert kept.at(measured(made.MACHINE.model_copy(update={"ranks": 4}))) == made.unknown()


def test_each_measurement_is_planned_from_once(job: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[MeasuredMachine | None] = []

    def again(config: RunConfig, machine: MeasuredMachine | None = None) -> Plan:
        asked.append(machine)
        return made.planned().model_copy(update={"measured": machine})

    monkeypatch.setattr(plans, "planned", again)
    kept, slower = JobPlan(job, RunConfig(), made.unknown()), made.MACHINE.model_copy(update={"matmul_flops": 1e9})
    assert kept.at(NOTHING).step is None
    for machine in (made.MACHINE, made.MACHINE, slower, slower):
        assert kept.at(measured(machine)).measured == machine
    assert asked == [made.MACHINE, slower]
    assert read_plan(job) == kept.at(NOTHING)


def test_the_time_of_a_step_follows_from_the_measurement(job: PosixStore) -> None:
    kept, faster = JobPlan(job, RunConfig(), made.unknown()), made.MACHINE.model_copy(update={"matmul_flops": 5e11})
    slow, fast = kept.at(measured(made.MACHINE)), JobPlan(job, RunConfig(), made.unknown()).at(measured(faster))
    assert slow.step is not None
    assert fast.step is not None
    assert (slow.measured, fast.measured) == (made.MACHINE, faster)
    assert fast.step.parts["matmul"] < slow.step.parts["matmul"]
    assert slow.saves is not None
    assert read_plan(job) == fast


def test_what_no_time_can_be_planned_from_leaves_the_plan_as_it_was(
    job: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "planned", lambda config, machine=None: made.unknown())
    kept = JobPlan(job, RunConfig(), made.unknown())
    assert kept.at(measured(made.MACHINE)) == made.unknown()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("parallel.strategy=hsdp parallel.shard_size=5", "32 ranks: must be a multiple of the sharding group, 5"),
        ("cluster.instance_type=p9.huge", "p9.huge"),
    ],
)
def test_a_plan_that_cannot_be_made_says_why_in_each_part(words: str, why: str) -> None:
    found = planned(preset("gpt-7b-p4d", words))
    assert found.memory is None
    assert {why in each.why for each in found.missing} == {True}
    assert Plan.model_validate_json(found.model_dump_json()) == found


def test_not_even_a_bug_of_the_planner_stops_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Plan:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("convoy.planner.plan.plan", broken)
    assert planned(RunConfig()).missing[0].why == "ZeroDivisionError: division by zero"


def test_it_is_what_convoy_plan_says() -> None:
    config = preset("gpt-7b-p4d")
    assert planned(config) == plan(config)


def test_a_dry_run_tells_what_limits_and_what_to_change_and_warns(capsys: pytest.CaptureFixture[str]) -> None:
    (told,) = _plan(preset("gpt-7b-p4d"))
    assert [line.split(":")[0] for line in told.strip().splitlines() if line[0] != " "][1:] == [
        "memory", "step", "time, cost", "checkpoints", "limits", "change",
    ]  # fmt: skip
    *_, last = _plan(preset("gpt-175b-p4d", "cluster.nodes=16 train.micro_batch=1 parallel.wrap=block"))
    assert last.strip().startswith("WARNING: by its plan this run does not fit: 44")


def test_a_run_that_does_not_fit_starts_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    _say_plan(preset("gpt-175b-p4d", "cluster.nodes=16 train.micro_batch=1 parallel.wrap=block"))
    said = capsys.readouterr()
    assert said.out.startswith("convoy plan: does not fit: 44")
    assert said.err.startswith("WARNING: by its plan this run does not fit: 44")
    _say_plan(preset("gpt-7b-p4d"))
    assert capsys.readouterr().err == ""
