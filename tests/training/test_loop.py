"""What the loop does when: logging, saving, evaluating."""

import itertools
import os
from unittest.mock import MagicMock

import pytest

from convoy.checkpoint.format import Progress
from convoy.config.run import RunConfig
from convoy.job.events.registry import (
    CheckpointSaved,
    Environment,
    Evaluated,
    MemoryPeak,
    ModelBuilt,
    NetworkProof,
    RankThroughput,
    StepDone,
    WorkerReady,
)
from convoy.training.loop import rank_log_is_due, run_step, seconds_waited
from convoy.training.optimizer import learning_rate
from tests.training.job import Job, tiny


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """12 steps on two ranks; saved at 5, 10 and 12, evaluated at 0, 6 and 12, every third step logged."""
    config = tiny(
        train={"steps": 12, "global_batch": 5, "micro_batch": 2, "log_every_steps": 3, "matmul_peak_seconds": 0.01},
        checkpoint={"every_steps": 5},
        evaluation={"every_steps": 6},
    )
    made = Job(str(tmp_path_factory.mktemp("job")), config)
    made.run(2)
    return made


def test_evaluations_are_at_the_start_at_multiples_and_at_the_end(job: Job) -> None:
    evaluations = job.events(Evaluated)
    assert [e.step for e in evaluations] == [0, 6, 12]
    assert evaluations[-1].loss < evaluations[0].loss
    assert {e.tokens for e in evaluations} == {5 * 16}
    assert {e.bits_per_byte for e in evaluations} == {None}  # synthetic tokens have no bytes


def test_every_so_many_steps_are_logged(job: Job) -> None:
    steps = job.events(StepDone)
    assert [e.step for e in steps] == [3, 6, 9, 12]
    assert {e.rank for e in steps} == {0}
    assert {e.tokens for e in steps} == {5 * 16}
    config = job.config
    expected = [learning_rate(e.step - 1, 12, config.optimizer, config.schedule) for e in steps]
    assert [e.lr for e in steps] == expected


def test_the_parts_of_a_step_sum_to_its_time(job: Job) -> None:
    for e in job.events(StepDone):
        parts = (e.data_seconds, e.exchange_seconds, e.forward_seconds, e.backward_seconds, e.optimizer_seconds)
        assert min(parts) > 0
        assert sum(parts) == pytest.approx(e.seconds)


def test_each_rank_tells_its_own_throughput_of_all_its_tokens(job: Job) -> None:
    told = job.events(RankThroughput)
    assert sorted((e.rank, e.step) for e in told) == [(0, 10), (0, 12), (1, 10), (1, 12)]
    assert sum(e.tokens for e in told) == 12 * 5 * 16
    assert all(0 < e.waited_seconds < e.seconds for e in told)
    assert {e.rank: e.tokens for e in told if e.step == 12} == {0: 2 * 3 * 16, 1: 2 * 2 * 16}


def test_a_job_on_cpus_claims_nothing_about_nccl(job: Job) -> None:
    assert job.events(NetworkProof) == []
    assert "NCCL_DEBUG" not in os.environ


def logged(begun: int, until: int) -> list[int]:
    """The steps at which a rank tells its throughput."""
    found = [begun]
    for step in range(begun + 1, until + 1):
        if rank_log_is_due(step, found[-1], begun):
            found.append(step)
    return found[1:]


def test_a_long_generation_is_told_in_longer_and_longer_pieces() -> None:
    assert logged(13, 60) == [20, 30, 40, 50, 60]
    assert logged(0, 1000) == list(range(10, 1001, 10))
    long = logged(0, 200_000)
    assert len(long) < 700, "it was 20,000"
    assert all(b - a <= max(10, b // 100 + 10) for a, b in itertools.pairwise(long))


def test_waits_in_the_first_step_of_a_generation_belong_to_its_start() -> None:
    t = MagicMock(config=RunConfig(), progress=Progress(), batches=iter([[], []]), updated=False)
    t.own = RankThroughput(step=0, tokens=0, seconds=0.0)
    t.stepper.return_value = MagicMock(skipped=False, tokens=4)
    t.elapsed.return_value = 0.0
    t.own_time.own_seconds.return_value = 1e-9  # all else of a step was waiting
    run_step(t)
    assert t.own.seconds > t.own.waited_seconds == 0.0
    t.updated = True
    run_step(t)
    assert t.own.waited_seconds > 0


def test_what_is_not_a_rank_s_own_it_waited_and_what_is_not_known_is_nothing() -> None:
    assert seconds_waited(0.5, 0.2) == pytest.approx(0.3)
    assert seconds_waited(0.5, 0.6) == 0.0  # two clocks
    assert seconds_waited(0.5, 0.0) == 0.0


def test_the_start_is_told_by_all_ranks_and_in_order(job: Job) -> None:
    for rank in (0, 1):
        told = [e for e in job.events(WorkerReady) if e.rank == rank]
        assert [e.phase for e in told] == ["imported", "connected", "built", "restored", "first_step"]
        assert [e.seconds for e in told] == sorted(e.seconds for e in told)
        first, measured = [e for e in job.events(Environment) if e.rank == rank]
        assert first.matmul_tflops is None
        assert measured.matmul_tflops is not None
        assert measured.matmul_tflops > 0
        assert measured.peak_tflops is None  # a CPU has no entry in the catalog
        assert first.machine is None
        assert measured.machine is not None
        assert measured.machine.ranks == 2
    assert {e.rank for e in job.events(MemoryPeak)} == {0, 1}


def test_the_model_is_told_with_its_size(job: Job) -> None:
    (built,) = job.events(ModelBuilt)
    parameters = 257 * 48 + 32 * 48 + 2 * (12 * 48**2 + 13 * 48) + 2 * 48
    assert built.parameters == parameters
    assert parameters * 4 // 2 <= built.sharded_bytes < parameters * 4 // 2 + 5000  # uneven rows


def test_saves_are_at_multiples_and_at_the_end_with_the_counters_of_all_steps(job: Job) -> None:
    assert [e.step for e in job.events(CheckpointSaved)] == job.steps_committed() == [5, 10, 12]
    progress = job.commit().progress
    assert (progress.step, progress.tokens, progress.skipped) == (12, 12 * 5 * 16, 0)
    assert job.commit().sampler.next_sample == 12 * 5
    assert progress.seconds > 0
