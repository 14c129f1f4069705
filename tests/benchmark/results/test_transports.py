"""What cases keep of one-sided transfers and of transports by other tools."""

from convoy.benchmark.results.network import measured_sizes
from convoy.benchmark.results.transports import one_sided_cases, transport_case_name, transport_figures
from convoy.network.one_sided.times import MODES, OneSidedResult, OneSidedTimes, PythonCosts
from convoy.network.transports import Reading, TransportResult

COSTS = PythonCosts(post=10e-6, nixl_post=8e-6, transfer=90e-6, total=95e-6, polls=4.0, hand_over=50e-6)


def test_one_sided_transfers_are_a_case_for_each_operation_and_mode_with_all_sizes() -> None:
    times = tuple(
        OneSidedTimes("WRITE", mode, size, 4, 8, (size * 1e-9, size * 2e-9), (1e-6,), 3, 4 * size, COSTS)
        for size in (8, 1024)
        for mode in MODES
    )
    cases = one_sided_cases(OneSidedResult("UCX", "tcp", times))
    names = [
        "UCX over tcp, WRITE, blocking",
        "UCX over tcp, WRITE, window",
        "UCX over tcp, WRITE, window by a proxy thread",
    ]
    assert list(cases) == names
    blocking, window, queue = (cases[name] for name in names)
    assert measured_sizes(blocking.samples) == [8, 1024]
    assert blocking.samples["seconds.1024"] == (1024e-9, 2048e-9)
    assert (blocking.values["wrong_bytes.8"], blocking.values["checked_bytes.8"]) == (3, 32)
    assert blocking.values["python_seconds.8"] == COSTS.total - COSTS.transfer
    assert queue.values["hand_over_seconds.1024"] == 50e-6
    assert not {"hand_over_seconds.8", "post_seconds.8"} & set(window.values)


def test_a_stream_keeps_its_rates_the_sum_of_what_was_lost_and_the_median_of_times() -> None:
    readings = tuple(
        Reading(rate, {}, {"packets": 100.0, "lost_packets": lost}, {"jitter_seconds": jitter})
        for rate, lost, jitter in ((1e6, 1.0, 3.0), (2e6, 2.0, 1.0), (3e6, 0.0, 2.0))
    )
    result = TransportResult("iperf3", "UDP 40 Mbit/s", readings)
    assert transport_case_name(result) == "iperf3, UDP 40 Mbit/s"
    assert transport_figures(result) == (
        {"bytes_per_second": (1e6, 2e6, 3e6)},
        {"packets": 300.0, "lost_packets": 3.0, "jitter_seconds": 2.0},
        {},
    )


def test_a_sweep_keeps_the_sizes_that_every_run_reached() -> None:
    readings = (Reading(seconds_by_size={8: 1.0, 64: 2.0}), Reading(seconds_by_size={8: 3.0}, stopped="too slow"))
    samples, values, missing = transport_figures(TransportResult("fi_pingpong", "tcp", readings))
    assert (samples, values, missing) == ({"seconds.8": (1.0, 3.0)}, {}, {"larger sizes": "too slow"})


def test_a_transport_that_is_not_measured_keeps_the_reason() -> None:
    figures = transport_figures(TransportResult("fi_pingpong", "efa", not_measured="no EFA device"))
    assert figures == ({}, {}, {"fi_pingpong, efa": "no EFA device"})
