"""Whether boxes of a tensor overlap: against one look at every element."""

import itertools
import random
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.writer.coordinator import Box, any_meet
from tests.campaign import examples

pytestmark = pytest.mark.campaign


@st.composite
def some_boxes(draw: st.DrawFn) -> list[Box]:
    dims = draw(st.integers(0, 3))
    span = st.tuples(*[st.tuples(st.integers(0, 5), st.integers(0, 4))] * dims)
    return [Box(tuple(o for o, _ in b), tuple(n for _, n in b)) for b in draw(st.lists(span, max_size=6))]


def elements(box: Box) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(o, o + n) for o, n in zip(box.offset, box.size, strict=True))))


@examples(300)
@given(some_boxes())
def test_boxes_meet_exactly_if_they_share_an_element(boxes: list[Box]) -> None:
    shared = Counter(element for box in boxes for element in elements(box))
    assert any_meet(boxes) == any(count > 1 for count in shared.values())


def test_boxes_that_no_cut_separates_are_told_apart() -> None:
    pinwheel = [Box((0, 0), (1, 2)), Box((0, 2), (2, 1)), Box((2, 1), (1, 2)), Box((1, 0), (2, 1)), Box((1, 1), (1, 1))]
    assert not any_meet(pinwheel)
    assert any_meet([*pinwheel, Box((1, 1), (1, 1))])


def test_thousands_of_shards_are_cheap_however_a_tensor_was_cut() -> None:
    for grid in [(4096, 1, 1), (1, 4096, 1), (16, 16, 16)]:
        boxes = [Box(tuple(7 * i for i in at), (7, 7, 7)) for at in itertools.product(*map(range, grid))]
        random.Random(0).shuffle(boxes)
        began = time.thread_time()
        assert not any_meet(boxes)
        assert time.thread_time() - began < 2.0  # every pair of them would take some ten seconds
        assert any_meet([*boxes, boxes[0]])
