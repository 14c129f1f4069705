"""Tokens of a pass that hide what is sent for it, worked out by hand."""

from typing import Any

import pytest

from convoy.model.counts import parameter_count
from convoy.planner.step.break_even import break_even_tokens, network_bytes_per_parameter
from convoy.planner.step.calibration import shipped_calibration
from convoy.planner.step.traffic import block_traffic
from convoy.planner.workload import Workload
from tests.planner.test_plan import planned
from tests.planner.workloads import workload

P4D, P5 = (50e9, 187e12), (400e9, 445e12)
"""Bytes per second into a machine, and FLOP/s of one of its GPUs."""


@pytest.mark.parametrize(
    ("machine", "of_line_rate", "tokens"), [(P4D, 1.0, 4987), (P4D, 0.7, 7124), (P5, 1.0, 1483), (P5, 0.7, 2119)]
)
def test_eight_bytes_per_parameter_take_as_long_as(
    machine: tuple[float, float], of_line_rate: float, tokens: float
) -> None:
    width, rate = machine
    found = break_even_tokens(8, of_line_rate * width, rate)
    assert found == pytest.approx(tokens, rel=0.001)
    assert break_even_tokens(8, of_line_rate * width, rate, flops_per_parameter=8) == pytest.approx(found * 0.75)


@pytest.mark.parametrize(
    ("nodes", "parallel", "by_hand"),
    [
        (2, {}, 8 / 2),
        (64, {}, 8 * 63 / 64),
        (4, {"strategy": "hsdp"}, 8 / 32 * 3 / 4),
        (8, {"strategy": "hsdp", "shard_size": 16}, 8 / 2 + 8 / 16 * 3 / 4 / 2),
        (8, {"strategy": "hsdp", "shard_size": 4}, 8 / 16 * 7 / 8),
        (4, {"strategy": "ddp"}, 8 / 32 * 3 / 4),
        (4, {"tensor": 4, "reshard_after_forward": False}, 6 * 3 / 4),
        (4, {"reduce_every_pass": False}, (4 + 4 / 32) * 3 / 4),
    ],
)
def test_it_is_what_the_blocks_of_a_model_send_between_machines(
    nodes: int, parallel: dict[str, Any], by_hand: float
) -> None:
    job = workload(nodes, micro_batch=1, global_batch=2 * 64 * 8, **parallel)
    assert network_bytes_per_parameter(job) == pytest.approx(by_hand)
    # DDP's buckets are not divided by blocks: the first has the last norm, and one the rows of positions.
    assert network_bytes_per_parameter(job) == pytest.approx(between(job), rel=2e-3)


def between(job: Workload) -> float:
    """Bytes into a machine, of a pass and of each parameter of a block."""
    sent, model = block_traffic(job), job.model
    gathered = sent.gathering * (1 + sent.again) * sent.gather.between
    block = parameter_count(model.model_copy(update={"n_layers": model.n_layers + 1})) - parameter_count(model)
    whole = gathered + sent.reducing * sent.reduce.between + sent.replicate.between
    return whole / job.passes / block


def test_break_even_of_a_plan_is_what_is_worked_out_by_hand() -> None:
    """4,987 tokens at line rate and 60 % of the peak, for 8 bytes per parameter, of which one in eight machines has its
    part already."""
    found = planned("llama-13b-p4d", "train.activation_checkpointing=none")
    assert found.break_even is not None
    assert found.break_even.bytes_per_parameter == 8 * 7 / 8
    k = shipped_calibration().constants
    at_line_rate = 7 / 8 * 4987 * k.matmul_efficiency["A100"] / 0.6
    assert found.break_even.tokens_per_pass == pytest.approx(at_line_rate / k.between_efficiency, rel=0.01)
