"""How a trial's gang is configured, without one."""

from pathlib import Path

import pytest

from convoy.config.run import RunConfig
from convoy.drills.fault import DrillPlan, GangSize
from convoy.drills.faults.worker import NodeSlowdown, Undisturbed, WorkerKill
from convoy.drills.registry import DRILLS
from convoy.drills.runner import COMPUTING
from convoy.drills.trial import config_of, run_trial, undisturbed_config
from tests.drills.trials import a_fault

PLAN = DrillPlan(size=GangSize(3, 1))


def test_the_names_that_are_promised_are_there() -> None:
    promised = (
        "worker-kill node-kill node0-kill worker-stop worker-hang worker-error worker-exit0 oom nan slow-node "
        "partition partition-heal spot-notice rebalance notice-then-nothing sigterm storage-full storage-hang "
        "kill-during-save kill-during-restore double-fault none random"
    )
    assert set(promised.split()) <= {drill.name for drill in DRILLS}
    assert all(kind.summary for kind in DRILLS)


def test_the_gang_trains_the_default_model(tmp_path: Path) -> None:
    config = config_of(a_fault(WorkerKill, tmp_path), PLAN, str(tmp_path))
    default = RunConfig()
    assert config.model == default.model
    assert config.optimizer == default.optimizer
    assert (config.train.global_batch, config.data.sequence_length) == (8, 256)


def test_a_gang_that_goes_on_for_a_time_never_ends_by_itself(tmp_path: Path) -> None:
    config = config_of(a_fault(Undisturbed, tmp_path, seconds=60.0), PLAN, str(tmp_path))
    assert config.train.steps == 1_000_000
    assert config.train.compile


@pytest.mark.parametrize("kind", [NodeSlowdown, *DRILLS])
def test_what_it_is_compared_with_computes_the_same_for_as_many_steps(kind: type, tmp_path: Path) -> None:
    config = config_of(a_fault(kind, tmp_path), PLAN, str(tmp_path))
    other = undisturbed_config(config, 17)
    assert other.train == config.train.model_copy(update={"steps": 17})
    for section in set(COMPUTING) - {"train"}:
        assert getattr(other, section) == getattr(config, section)
    assert other.checkpoint.tiers == ()
    assert other.schedule.decay_steps is not None, "the state after a step would depend on how many there are"


def test_words_of_the_user_come_below_those_of_the_drill(tmp_path: Path) -> None:
    plan = DrillPlan(size=GangSize(3, 1), words=("train.steps=70 train.seed=5",))
    assert config_of(a_fault(WorkerKill, tmp_path), plan, str(tmp_path)).train.steps == 70
    config = config_of(a_fault(NodeSlowdown, tmp_path, flow=True), plan, str(tmp_path))
    assert (config.train.steps, config.train.seed) == (100, 5)


class Lacking(WorkerKill):
    name = "lacking"

    def missing(self) -> str:
        return "a mountain"


def test_a_drill_that_this_machine_cannot_do_is_not_run(tmp_path: Path) -> None:
    result, observed = run_trial(a_fault(Lacking, tmp_path), PLAN, "job", tmp_path, lambda config, size: {})
    assert (result.ok, result.not_run, observed) == (False, "a mountain", None)
    assert not (tmp_path / "job").exists()
