"""A model of where machines are, against steps and costs worked out by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.benchmark.analysis.topology import StepTraffic, placement, topology
from convoy.benchmark.results import values
from convoy.catalog.links import Link
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.model.counts import parameter_count
from convoy.planner.step.traffic import Message
from tests.benchmark.results.cases import a_case
from tests.campaign import examples
from tests.report.bench_cases import GPUS

pytestmark = pytest.mark.campaign

SHAPE = {"n_layers": 24, "d_model": 1920, "n_heads": 15}
MODEL = TransformerConfig.model_validate(RunConfig().model.model_dump() | SHAPE)
PARAMETERS = parameter_count(MODEL)

FSDP: dict[str, Any] = {
    "train": {"global_batch": 256, "micro_batch": 4, "param_dtype": "bf16", "reduce_dtype": "fp32"},
    "parallel": {"strategy": "fsdp"},
    "model": SHAPE,
    "cluster": {"region": "us-east-1"},
}


def p4d(config: dict[str, Any] = FSDP, **changed: Any) -> Any:
    facts: dict[str, Any] = {"parameters": PARAMETERS, "tokens_per_step": 1_000_000, "hardware": GPUS}
    return a_case("fsdp", 2.0, config=config, **(facts | changed))


def link(gb_per_second: float = 50.0, latency: float = 14e-6, usd: float | None = 0.0) -> Link:
    return Link(
        level="zones", bytes_per_second=gb_per_second * 1e9, latency_seconds=latency, usd_per_gb=usd, assumes=""
    )


def test_a_step_of_four_p4d_by_hand() -> None:
    """8 samples a rank in 2 passes: each gathers 24 blocks twice in 2 bytes, and the root once, and scatters all in 4
    bytes. Three quarters of that pass each machine's network."""
    case = topology(p4d(), "us-east-1", 87.8304)
    assert case is not None
    block = PARAMETERS - parameter_count(MODEL.model_copy(update={"n_layers": 23}))
    sent = 2 * (24 * block * (2 * 2 + 4) + (PARAMETERS - 24 * block) * (2 + 4))
    assert case.edge_bytes == pytest.approx(0.75 * sent, rel=0.01)
    assert case.collectives == 2 * (24 * 3 + 2) + 2
    rounds = 2 * (24 * 3 + 2) + 2 * 2  # two all-reduces of a few bytes, of two rounds each
    near = next(place for place in case.placements if place.level == "placement_group")
    # 28 steps within machines and 3 between them for each round; then the bytes at 50 GB/s.
    assert near.communication_seconds == pytest.approx(rounds * (7 * 3.4e-6 + 3 * 14e-6) + case.edge_bytes / 50e9)
    assert near.low_seconds == case.compute_seconds
    assert near.high_seconds == pytest.approx(case.compute_seconds + near.communication_seconds)
    assert near.usd_per_million_tokens is not None
    assert near.usd_per_million_tokens[0] == pytest.approx(87.8304 / 3600 * near.low_seconds)
    zones = next(place for place in case.placements if place.level == "zones")
    # Both links over the border carry these bytes, at 0.02 USD for 2**30.
    assert zones.transfer_usd_per_million_tokens == pytest.approx(2 * case.edge_bytes / 2**30 * 0.02)
    farther = zones.latency_seconds - near.latency_seconds
    slower = case.edge_bytes * (1 / zones.bytes_per_second - 1 / 50e9)
    assert zones.communication_seconds - near.communication_seconds == pytest.approx(rounds * 3 * farther + slower)


@pytest.mark.parametrize(
    ("parallel", "bytes_per_parameter"),
    [
        ({"strategy": "fsdp", "reshard_after_forward": False}, 2 * (2 + 4) * 3 / 4),
        ({"strategy": "ddp"}, (4 + 4) * 3 / 4),  # between replicas once a step, in however many passes
        ({"strategy": "hsdp"}, (4 + 4) * 3 / 4),
    ],
)
def test_each_strategy_sends_what_it_must(parallel: dict[str, Any], bytes_per_parameter: float) -> None:
    case = topology(p4d({**FSDP, "parallel": parallel}), "us-east-1", None)
    assert case is not None
    assert case.edge_bytes == pytest.approx(bytes_per_parameter * PARAMETERS, rel=0.01)


def test_on_one_machine_all_goes_through_nvlink() -> None:
    case = topology(p4d(), "us-east-1", None)
    assert case is not None
    near, group = case.placements[:2]
    assert (near.level, group.level) == ("node", "placement_group")
    assert near.communication_seconds < group.communication_seconds


def test_what_was_measured_counts_for_more_than_what_is_expected() -> None:
    measured = {values.NETWORK_BYTES: 12e9, values.COMMUNICATION_SECONDS: 0.5}
    case = topology(p4d(values=measured), "us-east-1", None)
    assert case is not None
    assert (case.edge_bytes, case.edge_told) == (12e9, "measured")
    assert case.compute_seconds == pytest.approx(1.5, rel=0.02)
    assert case.compute_told == "the step without the exposed communication"


def test_what_has_no_model_says_why() -> None:
    other = topology(p4d({**FSDP, "parallel": {"strategy": "of another version"}}), "us-east-1", None)
    assert other is not None
    assert (other.why, other.placements) == ("its configuration is of another version", ())
    custom = {"build": "a.b:c", "vocab_size": 4096, "max_sequence_length": 256}
    unknown = topology(p4d({**FSDP, "model": custom, "evaluation": {"sample_tokens": 0}}), "us-east-1", None)
    assert unknown is not None
    assert unknown.why == "model.build = a.b:c: nothing is known of it"


def test_one_machine_alone_is_nowhere_else() -> None:
    assert topology(p4d(hardware=GPUS.model_copy(update={"nodes": 1, "ranks": 8})), "us-east-1", None) is None
    assert topology(p4d(hardware=GPUS.model_copy(update={"instance_type": None})), "us-east-1", None) is None


def test_without_a_price_there_is_no_cost() -> None:
    traffic = StepTraffic(Message(between=1e9), 30, Message(inside=1e9), 10)
    assert placement(traffic, link(), 1.0, 1000, None).usd_per_million_tokens is None
    unknown = placement(traffic, link(usd=None), 1.0, 1000, 10.0)
    assert (unknown.usd_per_million_tokens, unknown.transfer_usd_per_million_tokens) == (None, None)


@given(
    st.floats(0.1, 1000), st.floats(1.0, 100), st.floats(1e-6, 0.1), st.floats(0.01, 100),
)  # fmt: skip
@examples(200)
def test_more_bandwidth_is_never_slower_nor_dearer(
    gb_per_second: float, times: float, latency: float, compute: float
) -> None:
    traffic = StepTraffic(Message(between=7e9, hops=100 * 14e-6), 100, Message(inside=7e9), 100)
    slow = placement(traffic, link(gb_per_second, latency, 0.02), compute, 1000, 10.0)
    fast = placement(traffic, link(gb_per_second * times, latency, 0.02), compute, 1000, 10.0)
    assert fast.low_seconds <= slow.low_seconds <= slow.high_seconds
    assert fast.high_seconds <= slow.high_seconds
    assert fast.usd_per_million_tokens is not None
    assert slow.usd_per_million_tokens is not None
    assert fast.usd_per_million_tokens <= slow.usd_per_million_tokens
