"""Rows that lie in another order than theirs: which pieces of a tensor a stretch of memory holds."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.state.layout import note_rows, pieces, pieces_of, row_order

ORDER = ((4, 2), (0, 3), (6, 1), (3, 1))


@given(st.integers(0, 7), st.integers(0, 7))
def test_the_pieces_of_a_stretch_are_its_rows_in_the_order_in_which_they_lie(one: int, other: int) -> None:
    begin, end = sorted((one, other))
    lying = [row for first, count in ORDER for row in range(first, first + count)]
    found = list(pieces_of(ORDER, (begin, 5), (end - begin, 2)))
    assert [row for p in found for row in range(p.offset[0], p.offset[0] + p.size[0])] == lying[begin:end]
    assert [i for p in found for i in range(p.inner[0], p.inner[0] + p.size[0])] == list(range(end - begin))
    assert all((p.offset[1], p.size[1], p.inner[1]) == (5, 2, 0) for p in found)


def state(rows: int) -> dict[str, dict[str, object]]:
    moments = {"exp_avg": torch.zeros(rows, 2), "step": torch.tensor(3.0)}
    return {"model": {"w": torch.zeros(rows, 2), "v": torch.zeros(4)}, "optimizer": {"state": {"w": moments}}}


def test_a_weight_and_its_moments_know_their_order_and_nothing_else_has_one() -> None:
    tensors = state(7)
    note_rows(tensors, {"w": ORDER})
    moments = tensors["optimizer"]["state"]["w"]  # type: ignore[index]
    noted = [tensors["model"]["w"], moments["exp_avg"]]
    assert all(isinstance(t, torch.Tensor) and row_order(t) == ORDER and len(pieces(t)) == 4 for t in noted)
    others = [tensors["model"]["v"], moments["step"]]
    assert all(isinstance(t, torch.Tensor) and row_order(t) == () and pieces(t) == [] for t in others)


@pytest.mark.parametrize("order", [((0, 3),), ((0, 4), (3, 4)), ((0, 8),)])
def test_an_order_that_is_not_one_of_the_rows_is_refused(order: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="are not its 7 rows"):
        note_rows(state(7), {"w": order})
