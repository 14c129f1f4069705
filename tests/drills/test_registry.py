"""A drill is one class in one tuple."""

from pathlib import Path

import click.testing
import pytest

from convoy.benchmark.groups import Ranks
from convoy.benchmark.suites import recovery
from convoy.cli.drill import drill
from convoy.config.benchmark import BenchConfig
from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.drills import faults
from convoy.drills.fault import DrillOptions, Expectation, Fault
from convoy.drills.faults import DRILLS, drill_named
from convoy.drills.gang import DrillGang
from convoy.drills.result import result_of, table_row
from convoy.drills.runner import DrillRunner


class CoffeeSpill(Fault):
    """A made-up drill, which no machine can run."""

    name = "coffee-spill"
    summary = "coffee is spilled over a node"
    lasting = True
    target_detected = 0.5

    def missing_requirement(self) -> str | None:
        return "a cup of coffee"

    def inject(self, gang: DrillGang) -> float:
        raise AssertionError("there is no coffee")

    def expected(self) -> Expectation:
        return Expectation()


@pytest.fixture(autouse=True)
def spill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "DRILLS", (*DRILLS, CoffeeSpill))


def convoy_drill(*words: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(drill, words)


def test_it_runs_by_its_name_and_its_row_is_told() -> None:
    assert any(line.split()[0] == "coffee-spill" for line in convoy_drill().stdout.splitlines())
    done = convoy_drill("coffee-spill", "--trials", "1", "--seconds", "5")
    assert done.exit_code == 0
    assert "coffee-spill: this machine lacks a cup of coffee" in done.stdout


def test_drills_that_go_on_for_a_time_are_named_by_the_error_for_one_that_does_not() -> None:
    result = convoy_drill("worker-kill", "--seconds", "60")
    assert "only coffee-spill and none and random run for a given time" in str(result.exception)


def test_a_benchmark_takes_it_and_names_it_for_a_misspelt_one() -> None:
    config = BenchConfig.model_validate({"recovery": {"drills": ["coffee-spill"]}})
    (group,) = recovery.groups(config, {"a": RunConfig()}, Ranks(1, 1))
    assert [variant.name for variant in group.variants] == ["coffee-spill"]
    misspelt = BenchConfig.model_validate({"recovery": {"drills": ["coffee-spil"]}})
    with pytest.raises(ConfigError, match=r"recovery.drills = coffee-spil: .* coffee-spill"):
        list(recovery.groups(misspelt, {"a": RunConfig()}, Ranks(1, 1)))


def test_its_target_is_in_its_row(tmp_path: Path) -> None:
    runner = DrillRunner(DrillOptions(trials=1), tmp_path)
    (trial,) = runner.run_drill(drill_named("drill", "coffee-spill")).trials
    assert trial.not_run == "a cup of coffee"
    run = trial.model_copy(update={"not_run": None, "ok": True, "detected_s": 0.4})
    assert table_row(result_of("coffee-spill", [run]), CoffeeSpill)[3] == "0.5"
