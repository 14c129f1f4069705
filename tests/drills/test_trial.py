"""How a trial's gang is configured, and its final state compared bit for bit, without a drill."""

import subprocess
import sys
from pathlib import Path

import pytest

from convoy.checkpoint.format import DamagedCommitError
from convoy.config.run import RunConfig
from convoy.drills.fault import DrillOptions, GangSize
from convoy.drills.faults import DRILLS
from convoy.drills.faults.worker import NodeSlowdown, NoFault, WorkerKill
from convoy.drills.runner import COMPUTING
from convoy.drills.trial import config_of, differing_names, read_final_state, run_trial, undisturbed_config
from convoy.storage import open_store
from tests.drills.trials import a_fault
from tests.training.checkpointing.test_restore import flip
from tests.training.job import Job, tiny

PLAN = DrillOptions(size=GangSize(3, 1))


def test_the_names_that_are_promised_are_there() -> None:
    promised = (
        "worker-kill node-kill node0-kill worker-stop worker-hang worker-error worker-exit0 oom nan slow-node "
        "partition partition-heal spot-notice rebalance notice-then-nothing sigterm storage-full storage-hang "
        "kill-during-save kill-during-restore double-fault none random"
    )
    assert set(promised.split()) == {drill.name for drill in DRILLS}
    assert len(DRILLS) == len(promised.split())
    assert all(kind.summary for kind in DRILLS)


def test_the_gang_trains_the_default_model(tmp_path: Path) -> None:
    config = config_of(a_fault(WorkerKill, tmp_path), PLAN, str(tmp_path))
    default = RunConfig()
    assert config.model == default.model
    assert config.optimizer == default.optimizer
    assert (config.train.global_batch, config.data.sequence_length) == (8, 256)


def test_a_gang_that_goes_on_for_a_time_never_ends_by_itself(tmp_path: Path) -> None:
    config = config_of(a_fault(NoFault, tmp_path, seconds=60.0), PLAN, str(tmp_path))
    assert config.train.steps == 1_000_000
    assert config.train.compile


@pytest.mark.parametrize("kind", DRILLS)
def test_what_it_is_compared_with_computes_the_same_for_as_many_steps(kind: type, tmp_path: Path) -> None:
    config = config_of(a_fault(kind, tmp_path), PLAN, str(tmp_path))
    other = undisturbed_config(config, 17)
    assert other.train == config.train.model_copy(update={"steps": 17})
    for section in set(COMPUTING) - {"train"}:
        assert getattr(other, section) == getattr(config, section)
    assert other.checkpoint.tiers == ()
    assert other.schedule.decay_steps is not None, "the state after a step would depend on how many there are"


def test_words_of_the_user_come_below_those_of_the_drill(tmp_path: Path) -> None:
    plan = DrillOptions(size=GangSize(3, 1), words=("train.steps=70 train.seed=5",))
    assert config_of(a_fault(WorkerKill, tmp_path), plan, str(tmp_path)).train.steps == 70
    config = config_of(a_fault(NodeSlowdown, tmp_path), plan, str(tmp_path))
    assert (config.train.steps, config.train.seed) == (1_000_000, 5)


class Lacking(WorkerKill):
    name = "lacking"

    def missing_requirement(self) -> str:
        return "a mountain"


def test_a_drill_that_this_machine_cannot_do_is_not_run(tmp_path: Path) -> None:
    result, observed = run_trial(a_fault(Lacking, tmp_path), PLAN, "job", tmp_path, lambda config, size: {})
    assert (result.ok, result.not_run, observed) == (False, "a mountain", None)
    assert not (tmp_path / "job").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Job:
    job = Job(str(tmp_path_factory.mktemp("job")), tiny(train={"steps": 6}, checkpoint={"every_steps": 3}))
    job.run(2)
    return job


def test_a_job_that_took_another_way_to_the_same_end_has_the_same_state(trained: Job, tmp_path: Path) -> None:
    other = Job(str(tmp_path), trained.config)
    other.run(2, train={"steps": 3})
    other.run(2)
    one, another = read_final_state([trained.store]), read_final_state([other.store])
    assert one[0] is not None
    assert another[0] is not None
    assert (one[0].step, one[0].generation) == (6, 1)
    assert (another[0].step, another[0].generation) == (6, 2)
    assert len(one[1]) > 10
    assert differing_names(one[1], another[1]) == []


def test_a_job_with_another_seed_differs_in_every_weight(trained: Job, tmp_path: Path) -> None:
    other = Job(str(tmp_path), tiny(train={"steps": 6, "seed": 4}, checkpoint={"every_steps": 3}))
    other.run(2)
    different = differing_names(read_final_state([trained.store])[1], read_final_state([other.store])[1])
    assert any(name.startswith("model.") for name in different)


def test_a_commit_that_is_not_what_was_written_is_not_compared(trained: Job, tmp_path: Path) -> None:
    other = Job(str(tmp_path), trained.config)
    other.run(2)
    flip(other.store, step=6)
    with pytest.raises(DamagedCommitError, match="not what was written"):
        read_final_state([other.store])


def test_a_job_without_a_commit_has_no_state(tmp_path: Path) -> None:
    assert read_final_state([open_store(str(tmp_path))]) == (None, {})


def test_it_needs_no_torch() -> None:
    script = "import sys, convoy.drills.trial; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
