"""Stretches of a tensor's elements as boxes of it."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.state.flat_shard import FlatShard, flat_boxes

SHAPES = st.lists(st.integers(1, 6), max_size=4).map(tuple)


@given(SHAPES, st.data())
def test_the_boxes_of_a_stretch_are_its_elements_in_their_order_and_few(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    elements = math.prod(shape)
    begin = data.draw(st.integers(0, elements))
    end = data.draw(st.integers(begin, elements))
    whole = torch.arange(elements).reshape(shape)
    shard = FlatShard(whole.reshape(-1)[begin:end].clone(), shape, begin)
    found = []
    for box in shard.boxes():
        slices = tuple(slice(at, at + length) for at, length in zip(box.offset, box.size, strict=True))
        assert torch.equal(shard.box_view(box.offset, box.size), whole[slices])
        assert box.start == begin + len(found)
        found += whole[slices].reshape(-1).tolist()
    assert found == list(range(begin, end))
    assert len(shard.boxes()) <= max(1, 2 * len(shape) - 1)


def test_a_part_of_a_box_is_a_view_of_the_same_memory() -> None:
    shard = FlatShard(torch.zeros(20), (6, 5), 7)
    shard.box_view((3, 1), (1, 2)).fill_(1.0)
    assert shard.flat.nonzero().flatten().tolist() == [9, 10]
    with pytest.raises(KeyError):
        shard.box_view((5, 0), (1, 5))


def test_boxes_of_neighbours_are_all_of_the_tensor() -> None:
    shape, cuts = (3, 4, 5), (0, 13, 13, 41, 60)
    boxes = [box for begin, end in itertools.pairwise(cuts) for box in flat_boxes(shape, begin, end)]
    counted = torch.zeros(shape)
    for box in boxes:
        counted[tuple(slice(at, at + length) for at, length in zip(box.offset, box.size, strict=True))] += 1
    assert bool((counted == 1).all())


@pytest.mark.parametrize(("count", "start"), [(5, 26), (31, 0), (1, -1)])
def test_a_stretch_beyond_the_tensor_is_refused(count: int, start: int) -> None:
    with pytest.raises(ValueError, match="the tensor has 30"):
        FlatShard(torch.zeros(count), (6, 5), start)


def test_it_is_not_computed_with() -> None:
    with pytest.raises(TypeError, match="only saved and restored"):
        torch.add(FlatShard(torch.zeros(5), (5,), 0), 1)
