"""A model of where machines are, against steps and costs worked out by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.benchmark.analysis.topology import Traffic, placement, topology
from convoy.benchmark.results import values
from convoy.catalog.links import Link
from tests.benchmark.results.cases import a_case
from tests.campaign import examples
from tests.report.bench_cases import GPUS

pytestmark = pytest.mark.campaign

FSDP: dict[str, Any] = {
    "train": {"global_batch": 256, "micro_batch": 4, "param_dtype": "bf16", "reduce_dtype": "fp32"},
    "parallel": {"strategy": "fsdp"},
    "model": {"n_layers": 24},
    "cluster": {"region": "us-east-1"},
}


def p4d(config: dict[str, Any] = FSDP, **changed: Any) -> Any:
    facts: dict[str, Any] = {"parameters": 1_000_000_000, "tokens_per_step": 1_000_000, "hardware": GPUS}
    return a_case("fsdp", 2.0, config=config, **(facts | changed))


def link(gb_per_second: float = 50.0, latency: float = 14e-6, usd: float | None = 0.0) -> Link:
    return Link(
        level="zones", bytes_per_second=gb_per_second * 1e9, latency_seconds=latency, usd_per_gb=usd, assumes=""
    )


def test_a_step_of_four_p4d_by_hand() -> None:
    """8 samples a rank in 2 passes; each gathers twice in 2 bytes and scatters in 4: 2 x 8 x 31/32 a parameter."""
    found = topology(p4d(), "us-east-1", 87.8304)
    assert found is not None
    assert found.edge_bytes == pytest.approx(15.5e9)
    assert found.collectives == 2 * 3 * 25
    group = next(place for place in found.placements if place.level == "placement_group")
    # 28 steps within machines and 3 between them for each collective; then 15.5 GB at 50 GB/s.
    assert group.communication_seconds == pytest.approx(150 * (28 * 3.4e-6 + 3 * 14e-6) + 0.31)
    assert group.low_seconds == found.compute_seconds
    assert group.high_seconds == pytest.approx(found.compute_seconds + group.communication_seconds)
    assert group.usd_per_million_tokens is not None
    assert group.usd_per_million_tokens[0] == pytest.approx(87.8304 / 3600 * group.low_seconds)
    zones = next(place for place in found.placements if place.level == "zones")
    # Both links over the border carry 15.5e9 bytes: 28.87 GB at 0.02 USD.
    assert zones.transfer_usd_per_million_tokens == pytest.approx(2 * 15.5e9 / 2**30 * 0.02)


@pytest.mark.parametrize(
    ("parallel", "bytes_per_parameter"),
    [
        ({"strategy": "fsdp", "reshard_after_forward": False}, 2 * (2 + 4) * 31 / 32),
        ({"strategy": "fsdp", "reduce_every_pass": False}, (2 * 2 * 2 + 4) * 31 / 32),
        ({"strategy": "ddp"}, (4 + 4) * 31 / 32),  # between replicas once a step, in however many passes
        ({"strategy": "hsdp"}, (4 + 4) * 3 / 4),
    ],
)
def test_each_strategy_sends_what_it_must(parallel: dict[str, Any], bytes_per_parameter: float) -> None:
    found = topology(p4d({**FSDP, "parallel": parallel}), "us-east-1", None)
    assert found is not None
    assert found.edge_bytes == pytest.approx(bytes_per_parameter * 1e9)


def test_what_was_measured_counts_for_more_than_what_is_reckoned() -> None:
    told = {values.NETWORK_BYTES: 12e9, values.COMMUNICATION_SECONDS: 0.5}
    found = topology(p4d(values=told), "us-east-1", None)
    assert found is not None
    assert (found.edge_bytes, found.edge_told) == (12e9, "measured")
    assert found.compute_seconds == pytest.approx(1.5, rel=0.02)
    assert found.compute_told == "the step without the exposed communication"


def test_what_has_no_model_says_why() -> None:
    half = topology(p4d({**FSDP, "parallel": {"strategy": "hsdp", "shard_size": 4}}), "us-east-1", None)
    assert half is not None
    assert half.why == "hsdp with shards of 4 ranks, which are no whole machines"
    assert half.placements == ()
    other = topology(p4d({**FSDP, "parallel": {"strategy": "of another version"}}), "us-east-1", None)
    assert other is not None
    assert other.why.startswith("its configuration tells of a strategy")


def test_one_machine_alone_is_nowhere_else() -> None:
    assert topology(p4d(hardware=GPUS.model_copy(update={"nodes": 1, "ranks": 8})), "us-east-1", None) is None
    assert topology(p4d(hardware=GPUS.model_copy(update={"instance_type": None})), "us-east-1", None) is None


def test_without_a_price_there_is_no_cost() -> None:
    traffic = Traffic(ranks=32, nodes=4, edge_bytes=1e9, collectives=10)
    assert placement(traffic, link(), 1.0, 1000, None).usd_per_million_tokens is None
    unknown = placement(traffic, link(usd=None), 1.0, 1000, 10.0)
    assert (unknown.usd_per_million_tokens, unknown.transfer_usd_per_million_tokens) == (None, None)


@given(
    st.floats(0.1, 1000), st.floats(1.0, 100), st.floats(1e-6, 0.1), st.floats(0.01, 100), st.integers(1, 64),
    st.integers(1, 8),
)  # fmt: skip
@examples(200)
def test_more_bandwidth_is_never_slower_nor_dearer(
    gb_per_second: float, times: float, latency: float, compute: float, nodes: int, gpus: int
) -> None:
    traffic = Traffic(ranks=nodes * gpus, nodes=nodes, edge_bytes=7e9, collectives=100)
    slow = placement(traffic, link(gb_per_second, latency, 0.02), compute, 1000, 10.0)
    fast = placement(traffic, link(gb_per_second * times, latency, 0.02), compute, 1000, 10.0)
    assert fast.low_seconds <= slow.low_seconds <= slow.high_seconds
    assert fast.high_seconds <= slow.high_seconds
    assert fast.usd_per_million_tokens is not None
    assert slow.usd_per_million_tokens is not None
    assert fast.usd_per_million_tokens <= slow.usd_per_million_tokens
