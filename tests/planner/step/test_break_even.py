"""Tokens of a pass that hide what is sent for it, worked out by hand."""

import pytest

from convoy.model.counts import parameter_count
from convoy.planner.step.break_even import (
    TrafficPerParameter,
    break_even_tokens,
    replicated,
    sharded,
    traffic_per_parameter,
)
from convoy.planner.step.traffic import traffic
from convoy.planner.workload import Workload
from tests.planner.workloads import GPT_7B, workload

P4D, P5 = (50e9, 187e12), (400e9, 445e12)
"""Bytes per second into a machine, and FLOP/s of one of its GPUs."""


FSDP = TrafficPerParameter(2, 1)
"""Over machines without number."""


@pytest.mark.parametrize(
    ("machine", "of_line_rate", "tokens"), [(P4D, 1.0, 4987), (P4D, 0.7, 7124), (P5, 1.0, 1483), (P5, 0.7, 2119)]
)
def test_fsdp_sends_eight_bytes_per_parameter(machine: tuple[float, float], of_line_rate: float, tokens: float) -> None:
    width, rate = machine
    found = break_even_tokens(FSDP.bytes_per_parameter(), of_line_rate * width, rate)
    assert found == pytest.approx(tokens, rel=0.001)


def test_what_is_sent_by_how_parameters_and_gradients_are_kept() -> None:
    assert sharded(4).bytes_per_parameter() == 8 * 3 / 4
    assert sharded(4, reshard=False).bytes_per_parameter() == 6 * 3 / 4
    assert sharded(2, passes=4, reduce_every_pass=False).bytes_per_parameter() == (4 + 4 / 4) / 2
    assert sharded(2).bytes_per_parameter(reduce_dtype="bf16") == 6 / 2
    assert replicated(2).bytes_per_parameter() == 8 / 2
    assert replicated(2, passes=8).bytes_per_parameter() == 1 / 2


@pytest.mark.parametrize(
    ("nodes", "parallel"),
    [
        (2, {}),
        (64, {}),
        (4, {"strategy": "hsdp"}),
        (8, {"strategy": "hsdp", "shard_size": 16}),
        (8, {"strategy": "hsdp", "shard_size": 4}),
        (4, {"strategy": "ddp"}),
        (4, {"tensor": 4, "reshard_after_forward": False}),
        (4, {"reduce_every_pass": False}),
    ],
)
def test_it_is_what_the_blocks_of_a_model_send_between_machines(nodes: int, parallel: dict[str, object]) -> None:
    job = workload(nodes, model=GPT_7B, parallel=parallel, micro_batch=1, global_batch=2 * 64 * 8)
    assert traffic_per_parameter(job).bytes_per_parameter() == pytest.approx(between(job), rel=1e-3)


def between(job: Workload) -> float:
    """Bytes into a machine, of a pass and of each parameter of a block."""
    sent, model = traffic(job), job.model
    gathered = sent.gathering * (1 + sent.again) * sent.gather.between
    block = parameter_count(model.model_copy(update={"n_layers": model.n_layers + 1})) - parameter_count(model)
    whole = gathered + sent.reducing * sent.reduce.between + sent.replicate.between
    return whole / job.passes / block


def test_recomputation_hides_more_and_a_faster_gpu_less() -> None:
    width = 8.0
    assert break_even_tokens(width, *P4D, flops_per_parameter=8) == pytest.approx(break_even_tokens(width, *P4D) * 0.75)
    assert break_even_tokens(width, P4D[0], 2 * P4D[1]) == pytest.approx(2 * break_even_tokens(width, *P4D))
