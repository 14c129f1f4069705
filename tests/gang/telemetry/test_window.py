"""How many samples an event of the log covers, and what is left of them."""

from dataclasses import replace

import pytest

from convoy.gang.telemetry.gpus import GpuReading
from convoy.gang.telemetry.host import Bytes, NodeSample
from convoy.gang.telemetry.window import MOST_SECONDS, SAMPLE_SECONDS, SampleWindow, summarise
from convoy.job.events.hardware import HardwareSampled, Throttled
from convoy.job.events.registry import decode, encode

DAY = 86400


def a_sample(seconds: float = SAMPLE_SECONDS, cpu: float = 0.5, gpus: tuple[GpuReading, ...] = ()) -> NodeSample:
    return NodeSample(
        t=0.0, seconds=seconds, cpu=cpu, memory_used_bytes=10, memory_total_bytes=100, disk_free_bytes=7,
        network=Bytes(50, 100), rdma=None, interfaces={}, rails={}, gpus=gpus,
    )  # fmt: skip


def a_gpu(index: int, utilisation: float | None = 0.8, **figures: object) -> GpuReading:
    plain = GpuReading(index, utilisation, 30, 80, 600.0, 70.0, 1.98e9, ())
    return replace(plain, **figures)  # type: ignore[arg-type]


def events_of(seconds: float) -> list[HardwareSampled]:
    window, sample = SampleWindow(), a_sample()
    return [event for _ in range(int(seconds / SAMPLE_SECONDS)) if (event := window.add(sample)) is not None]


def test_the_log_of_a_short_job_has_every_sample() -> None:
    assert [event.samples for event in events_of(290)] == [1] * 58


def test_a_long_job_writes_few_events_and_leaves_no_time_out() -> None:
    events = events_of(10 * DAY)
    assert len(events) < 750
    assert max(event.seconds for event in events) <= MOST_SECONDS
    assert sum(event.seconds for event in events) > 10 * DAY - MOST_SECONDS
    assert 128 * sum(len(encode(event)) + 1 for event in events) < 60e6


def test_samples_that_are_not_due_yet_are_there_at_the_end() -> None:
    window = SampleWindow()
    assert window.take() is None
    for _ in range(500):
        window.add(a_sample())
    last = window.take()
    assert last is not None
    assert last.samples >= 1
    assert window.take() is None


def test_means_are_weighted_by_time_and_extremes_are_kept() -> None:
    longer = replace(a_sample(15, cpu=0.9), memory_used_bytes=40, disk_free_bytes=5, network=Bytes(0, 0))
    event = summarise([a_sample(5, cpu=0.1), longer])
    assert (event.seconds, event.samples, event.cpu) == (20, 2, 0.7)
    assert (event.memory_bytes, event.disk_free_bytes) == (40, 5)
    assert (event.sent_bytes_per_second, event.received_bytes_per_second) == (2, 5)
    assert event.gpus is event.rdma_sent_bytes_per_second is None


def test_gpus_are_summed_up_and_a_throttled_one_keeps_its_number() -> None:
    hot = a_gpu(3, 0.4, temperature_celsius=91.0, throttled=("thermal slowdown by hardware",))
    event = summarise([a_sample(gpus=(a_gpu(2), hot)), a_sample(gpus=(a_gpu(2, 0.9), a_gpu(3, 0.5)))])
    assert event.gpus is not None
    assert (event.gpus.count, event.gpus.utilisation, event.gpus.lowest_utilisation) == (2, 0.65, 0.45)
    assert (event.gpus.power_watts, event.gpus.temperature_celsius, event.gpus.sm_clock_hertz) == (600, 91, 1.98e9)
    assert event.gpus.throttled == (Throttled(reason="thermal slowdown by hardware", gpus=(3,), share=0.25),)
    assert decode(encode(event)) == event


@pytest.mark.parametrize("utilisation", [None, 0.5])
def test_what_one_gpu_does_not_report_is_left_to_the_others(utilisation: float | None) -> None:
    event = summarise([a_sample(gpus=(a_gpu(0, None), a_gpu(1, utilisation)))])
    assert event.gpus is not None
    assert (event.gpus.utilisation, event.gpus.lowest_utilisation) == (utilisation, utilisation)
