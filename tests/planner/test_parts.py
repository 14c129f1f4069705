"""Parts of a plan, beside what is worked out by hand."""

import pytest

from convoy.planner.step.calibration import shipped
from tests.planner.test_plan import planned


def test_break_even_is_what_is_worked_out_by_hand() -> None:
    """4,987 tokens at line rate and 60 % of the peak, for 8 bytes per parameter (`test_breakeven`), of which one in
    eight machines has its part already."""
    found = planned("llama-13b-p4d", "train.activation_checkpointing=none")
    assert found.break_even is not None
    assert found.break_even.bytes_per_parameter == 8 * 7 / 8
    k = shipped().constants
    at_line_rate = 7 / 8 * 4987 * k.matmul_efficiency["A100"] / 0.6
    assert found.break_even.tokens_per_pass == pytest.approx(at_line_rate / k.between_efficiency, rel=0.01)


def test_what_is_computed_again_is_in_hfu_alone() -> None:
    """All of forward again would be a third more; a block's last product and the head are not computed again."""
    none, full = (planned("gpt-7b-p5", f"train.activation_checkpointing={how}").step for how in ("none", "full"))
    assert none is not None
    assert full is not None
    assert none.hfu == none.mfu
    assert 1.22 < full.hfu / full.mfu < 1.25
