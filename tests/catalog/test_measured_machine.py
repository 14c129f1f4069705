"""What a job's ranks measured of their machines, as data."""

from convoy.catalog.measured_machine import Line


def test_a_collective_takes_its_latency_and_a_time_for_each_byte() -> None:
    line = Line(latency_seconds=1e-3, bytes_per_second=1e9, ranks=2)
    assert line.seconds(0.0) == 1e-3
    assert line.seconds(2e6) == 3e-3
