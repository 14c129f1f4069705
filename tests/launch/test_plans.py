"""The plan of a job is made once, kept below it, made again when the machine was measured, and stops no run."""

import json
from pathlib import Path
from typing import Any

import pytest

from convoy.catalog.measured_machine import MeasuredMachine
from convoy.catalog.prices import SHIPPED, PriceBook
from convoy.config.loader import read_overrides, resolve
from convoy.config.run import RunConfig
from convoy.launch import plans
from convoy.launch.flow import _plan_lines, _print_plan
from convoy.launch.plans import NAME, JobPlan, plan_caveats, plan_safely, read_plan
from convoy.launch.pricing import settle_price_from_root, without_settled_price
from convoy.planner.plan import plan
from convoy.planner.plan_schema import Plan
from convoy.report.fold import fold
from convoy.report.train_report import TrainReport
from convoy.storage import StoreUnavailable
from convoy.storage.posix import PosixStore
from tests.launch.price_list import refresh_prices
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
    assert JobPlan(job, made.rented(), told.model_dump(mode="json")).for_report(NOTHING) == told
    assert read_plan(job) == told
    assert json.loads(job.read(NAME))["model"] == "tiny"


def test_where_nobody_planned_it_is_planned(job: PosixStore) -> None:
    found = JobPlan(job, RunConfig()).for_report(NOTHING)
    assert found.memory is not None
    assert read_plan(job) == found


def test_of_a_plan_of_another_version_it_is_made_anew(job: PosixStore) -> None:
    job.write(NAME, b'{"schema_version": 9}')
    assert read_plan(job) is None
    assert JobPlan(job, RunConfig(), {"schema_version": 9}).for_report(NOTHING).model == "tiny"


def test_a_store_that_takes_nothing_costs_no_card_and_is_tried_later(
    job: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str, data: bytes) -> None:
        raise StoreUnavailable("No space left on device")

    job.write(NAME, made.unknown().model_dump_json().encode())
    kept, written = JobPlan(job, made.rented(), made.planned()), job.write
    monkeypatch.setattr(job, "write", full)
    assert kept.for_report(NOTHING) == made.planned()
    assert read_plan(job) == made.unknown()
    monkeypatch.setattr(job, "write", written)
    assert kept.for_report(NOTHING) == made.planned()
    assert read_plan(job) == made.planned()
    monkeypatch.setattr(job, "write", full)  # once it is kept, nothing is written
    assert kept.for_report(NOTHING) == made.planned()


def test_neither_a_known_machine_nor_a_measurement_of_other_ranks_is_planned_from(
    job: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "plan_safely", None)
    assert JobPlan(job, made.rented(), made.planned()).for_report(measured(made.MACHINE)).measured is None
    of_others = made.MACHINE.model_copy(update={"ranks": 4})
    assert JobPlan(job, RunConfig(), made.unknown()).for_report(measured(of_others)) == made.unknown()


def test_each_measurement_is_planned_from_once(job: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[MeasuredMachine | None] = []

    def again(config: RunConfig, machine: MeasuredMachine | None = None) -> Plan:
        asked.append(machine)
        return made.planned().model_copy(update={"measured": machine})

    monkeypatch.setattr(plans, "plan_safely", again)
    kept, slower = JobPlan(job, RunConfig(), made.unknown()), made.MACHINE.model_copy(update={"matmul_flops": 1e9})
    assert kept.for_report(NOTHING).step is None
    for machine in (made.MACHINE, made.MACHINE, slower, slower):
        assert kept.for_report(measured(machine)).measured == machine
    assert asked == [made.MACHINE, slower]
    assert read_plan(job) == kept.for_report(NOTHING)


def test_the_time_of_a_step_follows_from_the_measurement(job: PosixStore) -> None:
    kept, faster = JobPlan(job, RunConfig(), made.unknown()), made.MACHINE.model_copy(update={"matmul_flops": 5e11})
    slow, fast = (
        kept.for_report(measured(made.MACHINE)),
        JobPlan(job, RunConfig(), made.unknown()).for_report(measured(faster)),
    )
    assert slow.step is not None
    assert fast.step is not None
    assert (slow.measured, fast.measured) == (made.MACHINE, faster)
    assert fast.step.parts["matmul"] < slow.step.parts["matmul"]
    assert slow.saves is not None
    assert read_plan(job) == fast


def test_what_no_time_can_be_planned_from_leaves_the_plan_as_it_was(
    job: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "plan_safely", lambda config, machine=None: made.unknown())
    kept = JobPlan(job, RunConfig(), made.unknown())
    assert kept.for_report(measured(made.MACHINE)) == made.unknown()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            "parallel.strategy=hsdp parallel.shard_size=5",
            "parallel.shard_size = 5: must divide the number of ranks, 32",
        ),
        ("cluster.instance_type=p9.huge", "p9.huge"),
    ],
)
def test_a_plan_that_cannot_be_made_says_why_in_each_part(words: str, why: str) -> None:
    found = plan_safely(preset("gpt-7b-p4d", words))
    assert found.memory is None
    assert {why in each.why for each in found.missing} == {True}
    assert Plan.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("name", ["plan", "training_hash", "unmodelled", "shipped_calibration"])
def test_not_even_a_bug_of_the_planner_stops_a_run(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def broken(*_: Any) -> Plan:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(f"convoy.planner.plan.{name}", broken)
    assert plan_safely(RunConfig()).missing[0].why == "ZeroDivisionError: division by zero"


def test_it_is_what_convoy_plan_says() -> None:
    config = preset("gpt-7b-p4d", "root=null")
    assert plan_safely(config) == plan(config)


def of_cpus(root: Path, **cluster: Any) -> RunConfig:
    """Machines that the catalog has a price of, and no rate."""
    kept = {"backend": "kubernetes", "nodes": 2, "instance_type": "c7i.4xlarge", "market": "spot", **cluster}
    return RunConfig.model_validate({"root": str(root), "cluster": kept})


def test_a_price_list_that_is_none_costs_the_newest_prices_and_no_plan(tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text("{")
    config = made.rented(backend="kubernetes").model_copy(update={"root": str(tmp_path)})
    found, clean = plan_safely(config), plan_safely(config.model_copy(update={"root": None}))
    *others, told = found.assumed
    assert told.startswith(f"prices are the catalog's alone: {tmp_path}/prices.json")
    assert found.model_copy(update={"assumed": tuple(others)}) == clean
    assert clean.budget is not None
    assert plan_caveats(config, found) == (told,)


def test_a_run_says_that_a_local_one_does_not_use_the_price_of_its_machine(capsys: pytest.CaptureFixture[str]) -> None:
    priced = preset("cpu-smoke", "cluster.price.usd_per_hour=3 cluster.price.date=2026-11-01")
    assert plan_caveats(priced, plan_safely(priced))[-1].startswith(
        "cluster.price is not used: only runs with cluster.backend"
    )
    assert not any("price" in each for each in plan_caveats(preset("cpu-smoke"), plan_safely(preset("cpu-smoke"))))
    for config, told in ((priced, 1), (preset("cpu-smoke"), 0)):
        _print_plan(config)
        assert capsys.readouterr().out.count("convoy plan: cluster.price is not used") == told


def test_a_plan_made_again_in_the_gang_has_the_range_of_all_zones(tmp_path: Path) -> None:
    zones = PriceBook(refresh_prices(tmp_path, spot=(2000.0, 3000.0, 6000.0)))
    config = of_cpus(tmp_path, instance_type="p4d.24xlarge")
    settled = settle_price_from_root(config)
    assert settled.cluster.price is not None
    assert without_settled_price(settled, zones) == config
    again, asked = (plan_safely(each, made.MACHINE) for each in (settled, config))
    assert again == asked
    assert again.budget is not None
    assert again.budget.spot is not None
    assert again.budget.spot.least_usd != again.budget.spot.most_usd
    # One price has no range, and that of a price that was refreshed since stays as it was.
    assert without_settled_price(settled, PriceBook(refresh_prices(tmp_path, spot=4000.0))) == settled


def test_a_price_of_one_s_own_stays(tmp_path: Path) -> None:
    own = {"usd_per_hour": 0.5, "date": "2026-01-01", "source": "our contract"}
    settled = settle_price_from_root(of_cpus(tmp_path, price=own))
    assert without_settled_price(settled, SHIPPED) == settled


@pytest.mark.parametrize("instance", [None, "p4d.24xlarge"])
def test_a_local_run_is_planned_for_this_host_whatever_its_ledger_calls_it(instance: str | None) -> None:
    config = RunConfig.model_validate({"root": "/nowhere", "cluster": {"nodes": 2, "instance_type": instance}})
    given = plans._measurements(config, None, SHIPPED)
    assert given.host_bytes > 0
    assert plans._prices_or_reason(config) == (SHIPPED, "")


def test_of_a_host_that_is_measured_later_a_person_is_told_so() -> None:
    (said,) = plan_caveats(RunConfig(), made.unknown())
    assert said == "a job's first start measures its rates: cards of as many ranks have the step's time from then on"
    for words in ("train.matmul_peak_seconds=0", "parallel.cpu_offload=true"):
        config = resolve({}, read_overrides(words))
        assert plan_caveats(config, made.unknown()) == ()
    assert plan_caveats(made.rented(), made.planned()) == ()


def test_a_dry_run_says_of_what_its_plan_is_and_that_a_time_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "plan_safely", lambda config, root_answers: made.unknown())
    labelled = RunConfig.model_validate({"cluster": {"instance_type": "p4d.24xlarge"}})
    titles = [next(iter(_plan_lines(config))).split("\n")[1] for config in (RunConfig(), labelled)]
    assert titles == ["Plan:", "Plan of this host, where a local run computes:"]
    assert list(_plan_lines(RunConfig()))[1].endswith("have the step's time from then on")


def test_a_dry_run_tells_what_limits_and_what_to_change_and_warns(capsys: pytest.CaptureFixture[str]) -> None:
    (told,) = _plan_lines(preset("gpt-7b-p4d", "root=null"))
    assert [line.split(":")[0] for line in told.strip().splitlines() if line[0] != " "][1:] == [
        "memory", "step", "speed", "MFU", "tokens of a pass", "time to 134 B tokens", "checkpoints", "limits", "change",
    ]  # fmt: skip
    *_, last = _plan_lines(preset("gpt-175b-p4d", "root=null cluster.nodes=16 train.micro_batch=1 parallel.wrap=block"))
    assert last.strip().startswith("WARNING: by its plan this run does not fit: 5.7 GiB more")


def test_a_run_that_does_not_fit_starts_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    _print_plan(preset("gpt-175b-p4d", "root=null cluster.nodes=16 train.micro_batch=1 parallel.wrap=block"))
    said = capsys.readouterr()
    assert said.out.startswith("convoy plan: does not fit: 5.7 GiB more")
    assert said.err.startswith("WARNING: by its plan this run does not fit: 5.7 GiB more")
    _print_plan(preset("gpt-7b-p4d", "root=null"))
    assert capsys.readouterr().err == ""
