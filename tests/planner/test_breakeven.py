"""Tokens of a pass that hide what is sent for it, worked out by hand."""

import pytest

from convoy.planner.breakeven import break_even_tokens, replicated, sharded

P4D, P5 = (50e9, 187e12), (400e9, 445e12)
"""Bytes per second into a machine, and FLOP/s of one of its GPUs."""


@pytest.mark.parametrize(
    ("machine", "of_line_rate", "tokens"), [(P4D, 1.0, 4987), (P4D, 0.7, 7124), (P5, 1.0, 1483), (P5, 0.7, 2119)]
)
def test_fsdp_sends_eight_bytes_per_parameter(machine: tuple[float, float], of_line_rate: float, tokens: float) -> None:
    width, rate = machine
    found = break_even_tokens(sharded().bytes_per_parameter(), of_line_rate * width, rate)
    assert found == pytest.approx(tokens, rel=0.001)


def test_what_is_sent_by_how_parameters_and_gradients_are_kept() -> None:
    assert sharded().bytes_per_parameter() == 8
    assert sharded(reshard=False).bytes_per_parameter() == 6
    assert sharded(passes=4, reduce_every_pass=False).bytes_per_parameter() == 4 + 4 / 4
    assert sharded().bytes_per_parameter(reduce_dtype="bf16") == 6
    assert replicated().bytes_per_parameter() == 8
    assert replicated(passes=8).bytes_per_parameter() == 1


def test_recomputation_hides_more_and_a_faster_gpu_less() -> None:
    width = 8.0
    assert break_even_tokens(width, *P4D, flops_per_parameter=8) == pytest.approx(break_even_tokens(width, *P4D) * 0.75)
    assert break_even_tokens(width, P4D[0], 2 * P4D[1]) == pytest.approx(2 * break_even_tokens(width, *P4D))
