"""Cases from other tools' results, and results of nccl-tests from cases."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.benchmark.results.case import Case, Hardware, Provenance
from convoy.benchmark.results.exported import exported_run
from convoy.benchmark.results.imported import allowed_environment, imported_cases
from convoy.config.network import NetworkConfig
from convoy.network.results.nccl_checks import contradictions
from convoy.network.results.nccl_json import format_nccl_json
from convoy.network.results.read import read_result
from tests.network.results.nccl_output import Output, json_of, text_of_2_13, text_of_2_19
from tests.network.results.test_nccl import OUTPUTS
from tests.network.results.test_read import IBSTAT, PERFTEST, PINGPONG, iperf3

DATE = datetime(2026, 5, 2, tzinfo=UTC)


def cases_of(text: str) -> list[Case]:
    return imported_cases(read_result(text), DATE)


@settings(max_examples=80, deadline=None)
@given(output=OUTPUTS, per_iteration=st.booleans())
def test_what_is_exported_of_imported_cases_reads_back_equal(output: Output, per_iteration: bool) -> None:
    cases = cases_of(json_of(output, per_iteration=per_iteration))
    if cases:
        assert cases_of(format_nccl_json(exported_run(cases))) == cases


def measured_case(name: str, seconds: tuple[float, ...], cv: float = 0.1) -> Case:
    network = NetworkConfig(operations=("all_reduce",), dtype="bf16")
    return Case(
        suite="network", group="network-all_reduce", name=name, model="", parameters=0, tokens_per_step=0,
        config={"network": network.model_dump(mode="json")},
        hardware=Hardware(device="CPU", nodes=2, ranks=4, threads=1, cores=2, memory_bytes=1),
        provenance=Provenance(measured=DATE, commit="", versions={"nccl": "2.27.7"}, environment={}),
        samples={"seconds.1048576": seconds},
        values={"p50.1048576": 0.001, "p95.1048576": 0.002, "p99.1048576": 0.003, "mean.1048576": 0.0012,
                "cv.1048576": cv, "wrong.1048576": 0.0, "operations.1048576": 60.0},
    )  # fmt: skip


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=8), st.floats(0, 10))
def test_a_case_that_was_measured_here_is_exported_with_figures_that_read_back_equal(
    seconds: list[float], cv: float
) -> None:
    measured = measured_case("ring", tuple(seconds), cv)
    run = exported_run([measured])
    assert contradictions(run) == []
    (case,) = cases_of(format_nccl_json(run))
    assert case.samples["seconds.1048576"] == pytest.approx(tuple(seconds), rel=1e-8)
    for figure in ("p50", "p95", "p99", "mean", "cv", "wrong"):
        assert case.values[f"{figure}.1048576"] == pytest.approx(measured.values[f"{figure}.1048576"], rel=1e-9)
    assert (case.hardware.ranks, case.hardware.nodes, case.provenance.measured) == (4, 2, DATE)
    assert (case.config["imported"]["dtype"], case.provenance.versions) == ("bfloat16", {"nccl": "2.27.7"})


def test_a_case_of_a_lab_is_one_of_a_lab_wherever_it_is_read_again() -> None:
    measured = measured_case("ring", (0.5, 0.4)).model_copy(update={"lab": "4 hosts, 400mbit, reno"})
    exported = format_nccl_json(exported_run([measured]))
    devices = {device["device_info"] for device in json.loads(exported)["config"]["devices"]}
    assert devices == {"CPU in a lab of 4 hosts, 400mbit, reno"}
    (case,) = cases_of(exported)
    assert (case.hardware.device, case.lab) == ("CPU", measured.lab)


def test_a_case_in_place_goes_with_the_one_out_of_place() -> None:
    run = exported_run([measured_case("backend", (0.5,)), measured_case("backend, in place", (0.25,))])
    (row,) = run.rows
    assert row.out_of_place is not None
    assert row.in_place is not None
    assert (row.out_of_place.microseconds.value, row.in_place.microseconds.value) == (500_000, 250_000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_SECRET_ACCESS_KEY", "abc"),
        ("HOME", "/root"),
        ("NCCL_API_KEY", "1"),
        ("FI_AUTH_TOKEN", "x"),
        ("NCCL_NET", "ghp_A1b2C3d4E5f6G7h8I9j0K1l2"),
        ("OMPI_MCA_url", "https://user:word@host/"),
    ],
)
def test_no_variable_that_may_hold_a_secret_is_kept(name: str, value: str) -> None:
    assert allowed_environment({name: value, "NCCL_DEBUG": "INFO"}) == {"NCCL_DEBUG": "INFO"}


def test_an_export_has_only_variables_of_the_network() -> None:
    exported = format_nccl_json(exported_run(cases_of(json_of(Output()))))
    assert json.loads(exported)["env"] == ["FI_PROVIDER=efa", "NCCL_DEBUG=INFO"]
    assert "abc" not in exported


def test_sizes_that_were_measured_again_are_blocks_of_one_case() -> None:
    out_of_place, in_place = cases_of(text_of_2_13(Output(times=[(256, 10.0, 11.0), (256, 12.0, 13.0)])))
    assert (out_of_place.name, in_place.name) == ("imported", "imported, in place")
    assert out_of_place.samples == {"seconds.1024": (1e-5, 1.2e-5)}
    assert "date" in out_of_place.not_measured
    assert out_of_place.hardware.nodes == 2


def test_runs_of_one_operation_in_a_file_are_numbered() -> None:
    cases = cases_of(text_of_2_19(Output()) + text_of_2_19(Output()))
    assert [case.name for case in cases] == ["imported", "imported, in place", "imported 2", "imported 2, in place"]


@pytest.mark.parametrize(
    ("text", "key", "samples"),
    [
        (PERFTEST.format(rate="0.093174"), "network-transports-ib_write_bw, RC Ethernet",
         {"seconds.65536": 65536 * 8 / 97.61e9, "seconds.131072": 131072 * 8 / 97.70e9}),
        (PINGPONG.format(micro="5.30", ack="=10"), "network-transports-fi_pingpong",
         {"seconds.64": 5.3e-6, "seconds.1024": 10.24e-6}),
        (iperf3(1e9), "network-transports-iperf3, TCP cubic", {"bytes_per_second": 125e6}),
        (IBSTAT.format(state="Active", physical="LinkUp"), "network-ports-ibstat", {}),
    ],
)  # fmt: skip
def test_other_tools_are_cases_of_transports_and_ports(text: str, key: str, samples: dict[str, float]) -> None:
    (case,) = cases_of(text)
    assert case.key == key
    assert {name: each for name, (each,) in case.samples.items()} == pytest.approx(samples)


def test_ports_keep_their_rates_as_values_and_streams_their_counts() -> None:
    (ports,) = cases_of(IBSTAT.format(state="Active", physical="LinkUp"))
    assert ports.values == {"port_gbps.mlx5_0.1": 400.0, "port_gbps.mlx5_1.1": 2.5}
    (stream,) = cases_of(iperf3(1e9))
    assert stream.values == {"retransmits": 3.0}
