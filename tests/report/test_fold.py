"""The fold: what the log tells of a job, whole or partial."""

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.catalog.measured_machine import MeasuredMachine
from convoy.job.events.log import EventWriter, read_events
from convoy.job.events.registry import (
    CheckpointSaved,
    Environment,
    Evaluated,
    Event,
    GenerationEnded,
    GenerationStarted,
    RankThroughput,
    Restored,
    StepDone,
    WorkerExited,
)
from convoy.report.fold import PACE_STEPS, fold
from convoy.report.train_report import TrainReport
from convoy.storage import open_store
from tests.report.synthetic import (
    FLOPS_PER_TOKEN,
    MATMUL_TFLOPS,
    STEP_SECONDS,
    TOKENS,
    Log,
    failed_job,
    finished_job,
    resumed_job,
    running_job,
    write_log,
)


def test_an_empty_log_is_a_job_that_has_not_begun() -> None:
    report = fold([], target_steps=10)
    assert (report.outcome.state, report.step, report.started, report.steps) == ("running", 0, None, ())
    assert report.eta_seconds is None
    assert report.tokens_per_second is None
    assert report.goodput is None


def test_a_job_before_its_first_step_knows_its_gang_and_no_speed() -> None:
    log = Log()
    log.start(world_size=3)
    report = fold(log.events, target_steps=10)
    assert report.generations[0].world_size == 3
    assert len(report.ranks) == 3
    assert [p.name for p in report.startup] == ["imported", "connected", "built"]
    assert report.step_time is None
    assert report.matmul_share is None


def test_start_up_phases_are_those_of_the_slowest_rank() -> None:
    report = fold(running_job())
    assert [(p.name, round(p.at_seconds, 3)) for p in report.startup] == [
        ("imported", 1.6), ("connected", 1.8), ("built", 2.5), ("first_step", 3.1),
    ]  # fmt: skip
    assert sum(p.took_seconds for p in report.startup) == pytest.approx(3.1)


def test_a_finished_job_reports_its_curves_and_its_end() -> None:
    report = fold(finished_job(), target_steps=170)
    assert report.outcome.state == "finished"
    assert [s.step for s in report.steps] == list(range(1, 171))
    assert [v.step for v in report.validations] == [0, 85, 170]
    assert report.eta_seconds is None
    assert [c.step for c in report.checkpoints] == [85, 170]
    assert report.checkpoint_seconds == pytest.approx(0.4)
    assert report.evaluation_seconds == pytest.approx(1.5)
    assert report.samples[0].prompt == "def main("


def test_throughput_leaves_out_the_warm_up_of_each_generation() -> None:
    report = fold(resumed_job())
    rate = report.tokens_per_second
    assert rate is not None
    assert rate.n == 85 - 5 + 85 - 5
    assert rate.q1 == pytest.approx(TOKENS / STEP_SECONDS, rel=0.02)
    assert rate.q1 <= rate.median <= rate.q3


def test_skipped_steps_are_counted_and_not_measured() -> None:
    log = Log(events=running_job(20))
    log.add(
        StepDone(step=21, loss=math.nan, grad_norm=math.inf, lr=1e-3, tokens=TOKENS, seconds=9, skipped=True), rank=0
    )
    report = fold(log.events)
    assert report.skipped_steps == 1
    assert math.isnan(report.steps[-1].loss)
    assert report.step_time is not None
    assert report.step_time.total.n == 15
    assert report.timeline[-1].text == "Step 21 skipped: not finite"


def test_step_parts_add_up_to_the_step_with_the_rest_as_other() -> None:
    report = fold(finished_job())
    assert report.step_time is not None
    parts = report.step_time.parts
    assert list(parts) == ["data", "forward", "backward", "optimizer", "exchange", "other"]
    assert sum(p.median for p in parts.values()) == pytest.approx(report.step_time.total.median)
    assert parts["other"].median == pytest.approx(0.03 * report.step_time.total.median)


def test_the_share_of_the_matmul_rate_is_that_of_one_rank() -> None:
    report = fold(finished_job())
    assert report.tokens_per_second is not None
    by_hand = FLOPS_PER_TOKEN * report.tokens_per_second.median / 2 / (MATMUL_TFLOPS * 1e12)
    assert report.matmul_share == pytest.approx(by_hand)
    assert report.mfu is None


def test_mfu_is_there_only_where_the_peak_is_known() -> None:
    log = Log(events=finished_job())
    log.add(Environment(versions={}, device="NVIDIA H100", threads=1, peak_tflops=2.0), rank=0)
    events = [e for e in log.events if not (isinstance(e, Environment) and e.device != "NVIDIA H100")]
    report = fold(events)
    assert report.tokens_per_second is not None
    assert report.mfu == pytest.approx(FLOPS_PER_TOKEN * report.tokens_per_second.median / 2 / 2e12)
    assert report.matmul_share is None


def test_the_machine_is_what_the_slowest_rank_measured_before_the_first_step() -> None:
    def told(event: Event) -> Event:
        if not isinstance(event, Environment) or event.generation > 0:
            return event
        rate = 1e11 if event.rank == 0 else 9e10
        machine = MeasuredMachine(
            device=event.device, kind="cpu", dtype="fp32", threads=1, ranks=2, matmul_flops=rate,
            memory_bytes_per_second=1e10, operation_seconds=1e-5,
        )  # fmt: skip
        return event.model_copy(update={"machine": machine})

    report = fold([told(event) for event in resumed_job()])
    assert report.hardware is not None
    assert report.hardware.machine is not None
    assert report.hardware.machine.matmul_flops == 9e10


def test_the_eta_follows_the_pace_of_the_newest_steps() -> None:
    report = fold(running_job(step=70), target_steps=170)
    assert report.pace_steps == PACE_STEPS - 1
    assert report.eta_seconds == pytest.approx(100 * STEP_SECONDS)


def test_a_failure_before_the_first_step_is_a_failure() -> None:
    log = Log()
    log.start()
    log.fail(0, rank=0)
    report = fold(log.events, target_steps=10)
    assert report.outcome.state == "failed"
    assert report.outcome.cause is not None
    assert report.outcome.cause.rank == 0
    assert report.step == 0


def test_a_worker_that_ended_is_a_failure_before_its_agent_says_so() -> None:
    log = Log()
    log.start()
    log.add(WorkerExited(worker=1, exit_code=3), node=1)
    assert fold(log.events).outcome.state == "failed"


def test_a_failed_generation_without_a_worker_s_end_has_no_cause() -> None:
    log = Log()
    log.start()
    log.add(GenerationEnded(outcome="failed"), node=0)
    outcome = fold(log.events).outcome
    assert (outcome.state, outcome.cause) == ("failed", None)


def test_a_restart_hides_what_the_abandoned_branch_did_after_the_branching_step() -> None:
    report = fold(resumed_job(), target_steps=170)
    assert [s.step for s in report.steps] == list(range(1, 171))
    assert report.step == 170
    assert [(c.step, c.generation) for c in report.checkpoints] == [(85, 0), (170, 1)]
    assert report.generations[0].last_step == 120
    assert report.generations[1].why == "rank 1 on node 1 was killed by SIGKILL"
    assert [g.outcome for g in report.generations] == ["failed", "finished"]


def test_a_restart_from_the_start_hides_everything_before_it() -> None:
    log = Log(events=running_job(30))
    log.start(generation=1)
    report = fold(log.events, target_steps=170)
    assert report.steps == ()
    assert report.step == 0
    assert report.generations[0].outcome == "ended without a word"


def test_a_restart_that_has_not_stepped_yet_stands_at_its_parent_s_step() -> None:
    log = Log(events=failed_job())
    log.start(generation=1, parent=(0, 85))
    log.add(Restored(from_generation=0, step=85, seconds=1.25), rank=0)
    report = fold(log.events, target_steps=170)
    assert (report.outcome.state, report.step, report.steps[-1].step) == ("running", 85, 85)
    assert report.restores[0].seconds == 1.25
    assert report.eta_seconds is None


def test_late_events_of_a_zombie_generation_are_not_read() -> None:
    events = resumed_job()
    zombie = Log(t=events[-1].t + 5)
    zombie.add(StepDone(step=500, loss=0.0, grad_norm=1, lr=1, tokens=1, seconds=1), rank=0)
    zombie.add(CheckpointSaved(step=500, attempt="z", bytes=1, seconds=1), rank=0)
    report = fold(events + zombie.events)
    assert report.outcome.state == "finished"
    assert (report.step, report.steps[-1].step, report.checkpoints[-1].step) == (170, 170, 170)


def test_a_new_world_size_starts_its_own_throughput() -> None:
    log = Log(events=failed_job())
    log.start(generation=1, world_size=1, parent=(0, 85))
    log.steps(86, 100)
    report = fold(log.events)
    assert report.measured_world_size == 1
    assert report.tokens_per_second is not None
    assert report.tokens_per_second.n == 10
    assert [r.rank for r in report.ranks] == [0]


def test_each_rank_has_its_throughput_and_its_memory_peak() -> None:
    report = fold(finished_job())
    assert [r.memory_peak_bytes for r in report.ranks] == [812_000_000, 813_000_000]
    assert report.memory_peak_bytes == 813_000_000
    rate = report.ranks[1].tokens_per_second
    assert rate is not None
    assert rate.median == pytest.approx(TOKENS / 2 / STEP_SECONDS)
    assert rate.n == 170 // 20 - 1


def test_the_longer_pieces_of_a_long_generation_count_as_their_steps() -> None:
    log, told = Log(), [*range(10, 1001, 10), *range(2000, 10_001, 1000)]
    log.start()
    for before, step in itertools.pairwise([0, *told]):
        log.wait(1.0)
        seconds = (step - before) * (1.0 if step <= 1000 else 2.0)  # slow for nine tenths of the steps
        log.add(RankThroughput(step=step, tokens=100 * (step - before), seconds=seconds), rank=0)
    rate = fold(log.events).ranks[0].tokens_per_second
    assert rate is not None
    assert (rate.q1, rate.median, rate.q3) == (50.0, 50.0, 50.0)
    assert rate.n < 600


def test_wall_time_leaves_out_the_pause_between_generations() -> None:
    report = fold(resumed_job())
    assert report.started is not None
    assert report.last_event is not None
    assert report.wall_seconds == pytest.approx(report.last_event - report.started - 100, abs=0.01)


def test_the_report_is_the_same_after_the_log_went_through_a_store(tmp_path: Path) -> None:
    events = resumed_job()
    write_log(open_store(str(tmp_path)), events)
    assert fold(read_events(open_store(str(tmp_path))), 170) == fold(events, 170)


def test_what_an_event_writer_wrote_is_folded(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    agent, worker = EventWriter(store, 0, 0), EventWriter(store, 0, 0, rank=0)
    agent.append(GenerationStarted(run="F/1", nodes=1, world_size=1))
    worker.append(StepDone(step=1, loss=math.inf, grad_norm=1, lr=1, tokens=8, seconds=0.5))
    worker.append(Evaluated(step=1, loss=2.0, bits_per_byte=None, tokens=8, seconds=0.1))
    for writer in (agent, worker):
        writer.close()
    report = fold(read_events(store), target_steps=2)
    assert (report.step, report.steps[0].loss, report.steps[0].tokens_per_second) == (1, math.inf, 16.0)


@given(st.integers(0, len(resumed_job())))
def test_every_prefix_of_a_log_folds(length: int) -> None:
    report: TrainReport = fold(resumed_job()[:length], target_steps=170)
    steps = [s.step for s in report.steps]
    assert steps == sorted(set(steps))
    assert report.step <= 170
    assert report.eta_seconds is None or report.eta_seconds >= 0
