"""Plain values come back as they were, through JSON as it is written to a part record."""

import collections
import enum
import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import PlainValue
from convoy.checkpoint.state.values import decode, dtype_of, encode
from tests.campaign import examples

pytestmark = pytest.mark.campaign

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**300), max_value=2**300)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters())
    | st.text(st.characters(categories=["Cs", "L"]))
    | st.binary()
    | st.sampled_from([torch.float32, torch.bfloat16, torch.bool, torch.device("cpu"), torch.device("cuda:3"), "~"])
)
KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text()) | st.just("~")
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4).map(collections.OrderedDict)
    ),
    max_leaves=20,
)


def through_json(value: Any) -> Any:
    text = PlainValue(name="x", value=encode(value, "x")).model_dump_json()
    assert json.loads(text)["name"] == "x"  # any reader's JSON, not only pydantic's
    return decode(PlainValue.model_validate_json(text).value)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, b) and same(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) and repr(one) == repr(other)  # repr: -0.0 is not 0.0


@pytest.mark.processes
@given(VALUES)
@examples(300)
def test_every_value_comes_back_equal_and_of_its_type(value: Any) -> None:
    assert same(value, through_json(value))


def test_not_a_number_comes_back_too() -> None:
    assert math.isnan(through_json({"loss": math.nan})["loss"])


class Colour(enum.IntEnum):
    RED = 1


class Rate(float):
    pass


@pytest.mark.parametrize("value", [object(), {1, 2}, Colour.RED, Rate(1.0), collections.Counter("a"), range(3)])
def test_what_would_come_back_as_something_else_is_refused_with_its_path(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"scheduler\.rates\.1: .*\b" + type(value).__name__):
        encode({"rates": [1.0, value]}, "scheduler")


def test_a_kind_of_a_later_version_is_told_by_name() -> None:
    with pytest.raises(ValueError, match="'fraction'"):
        decode({"~": "fraction", "value": [1, 3]})


def test_a_type_that_torch_does_not_have_is_told_by_name() -> None:
    assert dtype_of("float8_e4m3fn") is torch.float8_e4m3fn
    for name in ("float7", "nn", "Tensor"):
        with pytest.raises(ValueError, match=f"no dtype {name}"):
            dtype_of(name)
