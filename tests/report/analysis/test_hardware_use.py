"""What the report makes of samples of the hardware. All samples here are made up."""

from typing import Any

import pytest

from convoy.job.events.hardware import GpusSampled, HardwareSampled, Throttled
from convoy.report.analysis.hardware_use import MAX_PIECES, hardware_use
from tests.report.synthetic import Log


def gpus(utilisation: float, **figures: Any) -> GpusSampled:
    plain: dict[str, Any] = {
        "count": 8, "utilisation": utilisation, "lowest_utilisation": utilisation / 2, "power_watts": 600.0,
        "temperature_celsius": 70.0, "memory_bytes": 60, "memory_total_bytes": 80, "sm_clock_hertz": 1.9e9,
    }  # fmt: skip
    return GpusSampled(**{**plain, **figures})


def sampled(seconds: float = 5.0, cpu: float = 0.5, **figures: Any) -> HardwareSampled:
    plain: dict[str, Any] = {
        "samples": 1, "memory_bytes": 10, "memory_total_bytes": 100, "sent_bytes_per_second": 1e6,
        "received_bytes_per_second": 2e6,
    }  # fmt: skip
    return HardwareSampled(seconds=seconds, cpu=cpu, **{**plain, **figures})


def test_a_log_without_samples_says_nothing_of_the_hardware() -> None:
    log = Log()
    log.form(1)
    log.step(1)
    assert hardware_use(log.events) is None


def test_means_leave_out_the_start_and_what_follows_the_last_step() -> None:
    log = Log()
    log.form(1)
    log.wait(10)
    log.add(sampled(10, gpus=gpus(0.0)))
    log.step(1)
    for step in range(2, 22):
        log.step(step)
        if step % 10 == 0:
            log.add(sampled(10, gpus=gpus(0.8 if step == 10 else 0.6)))
    log.wait(30)
    log.add(sampled(30, gpus=gpus(0.0)))
    use = hardware_use(log.events)
    assert use is not None
    assert use.while_training
    (node,) = use.nodes
    assert node.gpu == pytest.approx(0.7)
    assert (node.seconds, node.gpus, node.gpu_power_watts) == (20, 8, pytest.approx(600))
    assert use.points[-1].gpu == 0


def test_before_the_second_step_all_samples_count() -> None:
    log = Log()
    log.form(1)
    log.wait(5)
    log.add(sampled(cpu=0.25))
    use = hardware_use(log.events)
    assert use is not None
    assert not use.while_training
    assert (use.nodes[0].cpu, use.nodes[0].gpu, use.nodes[0].gpus) == (0.25, None, 0)


def test_longer_samples_weigh_more_and_every_node_has_its_row() -> None:
    log = Log()
    log.form(1)
    log.wait(40)
    log.add(sampled(30, cpu=0.9), node=0)
    log.add(sampled(10, cpu=0.1), node=0)
    log.add(sampled(40, cpu=0.4, disk_free_bytes=7), node=1)
    use = hardware_use(log.events)
    assert use is not None
    assert [node.cpu for node in use.nodes] == [pytest.approx(0.7), pytest.approx(0.4)]
    assert [node.disk_free_bytes for node in use.nodes] == [None, 7]


def test_throttling_is_summed_up_by_reason_with_the_gpus_that_reported_it() -> None:
    hot = Throttled(reason="thermal slowdown by hardware", gpus=(3,), share=0.1)
    capped = Throttled(reason="power cap", gpus=(0, 1), share=0.2)
    log = Log()
    log.form(1)
    log.wait(30)
    log.add(sampled(10, gpus=gpus(0.9, throttled=(hot, capped))))
    log.add(sampled(10, gpus=gpus(0.9, throttled=(capped,))))
    log.add(sampled(10, gpus=gpus(0.9, throttled=(hot.model_copy(update={"gpus": (5,)}),))))
    use = hardware_use(log.events)
    assert use is not None
    found = [(each.reason, each.gpus, pytest.approx(each.share)) for each in use.nodes[0].throttling]
    assert found == [("power cap", (0, 1), 0.4 / 3), ("thermal slowdown by hardware", (3, 5), 0.2 / 3)]


def test_a_long_job_has_few_points_in_the_order_of_time_and_gaps_have_none() -> None:
    log = Log()
    log.form(1)
    for _ in range(2_000):
        log.wait(60)
        log.add(sampled(60, gpus=gpus(0.9)))
    log.wait(1e6)
    log.add(sampled(60, gpus=gpus(0.1)))
    use = hardware_use(log.events)
    assert use is not None
    times = [point.t for point in use.points]
    assert times == sorted(times)
    assert 2 <= len(times) < MAX_PIECES / 2
    assert {round(point.gpu or 0.0, 6) for point in use.points} == {0.9, 0.1}


def test_an_event_counts_in_a_piece_of_time_for_as_much_of_it_as_lies_there() -> None:
    """Pieces of 5 s: node 1's second event ends 1 s into the last one."""
    log = Log()
    log.form(1)
    for _ in range(3):
        log.wait(5)
        log.add(sampled(cpu=0.2), node=0)
    log.t -= 4
    log.add(sampled(11, cpu=0.8), node=1)
    use = hardware_use(sorted(log.events, key=lambda e: e.t))
    assert use is not None
    assert [point.cpu for point in use.points] == [pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.3)]


def test_a_piece_of_time_is_the_mean_of_all_nodes() -> None:
    log = Log()
    log.form(1)
    for _ in range(10):
        log.wait(5)
        log.add(sampled(cpu=0.2), node=0)
        log.add(sampled(cpu=0.6), node=1)
    use = hardware_use(log.events)
    assert use is not None
    assert len(use.points) == 10
    assert [point.cpu for point in use.points] == [pytest.approx(0.4)] * 10
