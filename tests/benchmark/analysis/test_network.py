"""Bandwidths of collectives, their bounds, and which algorithm is fastest where."""

import pytest

from convoy.benchmark.analysis.network import CollectiveFigures, network_figures
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.network import figure_name
from tests.benchmark.cases import replaced
from tests.benchmark.network_cases import LINE, SIZES, algorithms, network_case

MIB = 2**20


def figures(*cases: Case) -> CollectiveFigures:
    (found,) = network_figures(cases)
    return found


def test_bandwidths_are_those_of_nccl_tests_and_their_bound_is_the_links() -> None:
    found = figures(*algorithms())
    assert found.bound == pytest.approx(100e6)  # 0.8 Gbit/s, of one rank on each host
    ring = next(each for each in found.algorithms if each.name == "ring")
    at = ring.at(4 * MIB)
    assert at is not None
    latency, rate = LINE["ring"]
    algbw = 4 * MIB / (latency + 4 * MIB / rate)
    assert at.algbw.estimate == pytest.approx(algbw, rel=0.01)
    assert at.busbw.estimate == pytest.approx(1.5 * algbw, rel=0.01)
    assert at.bound_share is not None
    assert at.bound_share.estimate == pytest.approx(1.5 * algbw / 100e6, rel=0.01)
    assert not found.is_wrong


def test_latency_and_rate_are_fitted_over_all_sizes() -> None:
    for case in figures(*algorithms()).algorithms:
        latency, rate = LINE[case.name]
        assert case.link is not None
        assert case.link.alpha.estimate == pytest.approx(latency, rel=0.02)
        assert case.link.beta.estimate == pytest.approx(rate, rel=0.02)
        assert case.link.half_size == pytest.approx(latency * rate, rel=0.03)


def test_times_are_compared_with_the_backends_in_pairs() -> None:
    found = figures(*algorithms())
    backend, *others = found.algorithms
    assert backend.name == "backend"
    assert all(each.time_ratio is None for each in backend.sizes)
    small = {each.name: each.at(1024) for each in others}["recursive doubling"]
    assert small is not None
    assert small.time_ratio is not None
    assert small.time_ratio.high - small.time_ratio.low < 1e-9  # the same noise in both: it is gone in a pair


def test_the_fastest_algorithm_is_named_by_ranges_of_sizes() -> None:
    ranges = [(each.name, each.first, each.last) for each in figures(*algorithms()).fastest]
    assert ranges == [("recursive doubling", 1024, 16384), ("backend", 2**18, 2**18), ("ring", 2**22, 2**22)]


def test_no_share_is_shown_without_a_rate_or_on_one_host() -> None:
    unknown = figures(network_case(link_gbps=None))
    assert unknown.bound is None
    assert all(each.bound_share is None for each in unknown.algorithms[0].sizes)
    assert figures(network_case(hosts=1)).bound is None


def test_the_catalog_has_the_rate_of_known_machines() -> None:
    case = network_case(link_gbps=None)
    p4d = replaced(case, hardware=replaced(case.hardware, instance_type="p4d.24xlarge", ranks=32))
    found = figures(p4d)
    assert found.link_gbps == 400
    assert found.bound == pytest.approx(64.6e9, rel=0.001)  # of 4 hosts with 8 ranks each, 50 GB/s


def test_a_figure_above_its_bound_has_no_share_and_is_wrong() -> None:
    found = figures(network_case(link_gbps=0.3))
    large = found.algorithms[0].at(4 * MIB)
    assert large is not None
    assert large.above_bound
    assert large.bound_share is None
    assert found.is_wrong


def test_wrong_elements_are_wrong() -> None:
    assert figures(network_case(figures={figure_name("wrong", SIZES[0]): 3.0})).is_wrong


def test_other_cases_and_unmeasured_ones_have_no_figures() -> None:
    failed = replaced(network_case(), status="failed", samples={})
    assert network_figures([failed]) == ()
    other_tool = replaced(network_case(), config={})
    assert network_figures([other_tool]) == ()
