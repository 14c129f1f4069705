"""What the network suite's cases teach the planner."""

import pytest

from convoy.benchmark.analysis.network_for_planner import catalog_constants, measured_links
from convoy.benchmark.results.case import Case
from convoy.config.network import Operation
from convoy.planner.step.calibration import shipped_calibration
from tests.benchmark.cases import MEASURED, a_case, replaced
from tests.benchmark.network_cases import network_case

LATENCY, RATE = 2e-4, 80e6


def on_cpus() -> list[Case]:
    direct, backend, ring = "direct exchange", "backend", "ring"
    cases = [network_case(direct, operation, line=(LATENCY, RATE)) for operation in ("all_gather", "reduce_scatter")]
    within = network_case(direct, "all_gather", line=(1e-5, 1e9), hosts=1, ranks=2, link_gbps=None)
    others = [network_case(name, "all_gather", line=(1.0, 1.0)) for name in (ring, backend)]
    return [*cases, within, *others, a_case()]


def test_lines_are_those_of_the_way_that_training_takes() -> None:
    within, between = measured_links(on_cpus())
    assert (within.hosts, within.ranks, within.reduce) == (1, 2, None)
    assert (between.hosts, between.ranks) == (4, 4)
    for line in (between.gather, between.reduce):
        assert line is not None
        assert line.latency_seconds == pytest.approx(LATENCY, rel=0.02)
        assert line.bytes_per_second == pytest.approx(RATE, rel=0.02)
    assert between.all_reduce is None


def test_a_machine_takes_the_lines_and_keeps_what_was_not_measured() -> None:
    (_, between) = measured_links(on_cpus())
    machine = between.of(MEASURED)
    assert machine.gather == between.gather
    assert machine.all_reduce == MEASURED.all_reduce
    assert machine.matmul_flops == MEASURED.matmul_flops


def test_a_calibration_has_links_for_one_host_and_for_several() -> None:
    links = measured_links(on_cpus())
    calibration = shipped_calibration("cpu").model_copy(update={"links": links})
    assert calibration.links_for(nodes=1, ranks=2) == links[0]
    assert calibration.links_for(nodes=8, ranks=64) == links[1]
    assert shipped_calibration("cpu").links_for(nodes=1, ranks=2) is None


def on_p4d(operation: Operation, latency: float, rate: float) -> Case:
    case = network_case("backend", operation, line=(latency, rate), sizes=(2**16, 2**20, 2**26, 2**30))
    versions = {**case.provenance.versions, "nccl": "2.27.7"}
    hardware = replaced(case.hardware, instance_type="p4d.24xlarge", ranks=32, nodes=4)
    no_rate = {**case.config, "network": {**case.config["network"], "link_gbps": None}}
    return replaced(case, hardware=hardware, provenance=replaced(case.provenance, versions=versions), config=no_rate)


def test_constants_of_catalog_machines_follow_from_the_rate_of_their_network() -> None:
    # 50 GB/s leave each of four machines at 80 %: a gather of S sends 3/4 S from each, an all-reduce twice that.
    cases = [on_p4d("all_gather", 6e-4, 0.8 * 50e9 * 4 / 3), on_p4d("all_reduce", 1.2e-3, 0.8 * 50e9 * 2 / 3)]
    found = catalog_constants(cases)
    assert found["between_efficiency"] == pytest.approx(0.8, rel=0.01)
    # Seven hops of NVLink at 3.4 µs and three of the network at 14 µs, once around, and twice.
    assert found["hop_factor"] == pytest.approx(6e-4 / (7 * 3.4e-6 + 3 * 14e-6), rel=0.05)
    assert catalog_constants(on_cpus()) == {}
