"""Which files are held out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.config.errors import ConfigError
from convoy.data.sources import held_out

NAMES = st.lists(st.text(min_size=1, max_size=12), min_size=2, max_size=60, unique=True)
FRACTIONS = st.floats(0.001, 0.999)


@given(NAMES, FRACTIONS)
@settings(deadline=None)
def test_each_side_gets_at_least_one_name(names: list[str], fraction: float) -> None:
    chosen = held_out(names, fraction)
    assert 1 <= len(chosen) < len(names)
    assert chosen <= set(names)


@given(NAMES, FRACTIONS, st.randoms())
@settings(deadline=None)
def test_the_order_of_names_does_not_matter(names: list[str], fraction: float, random: object) -> None:
    assert held_out(names, fraction) == held_out(sorted(names, reverse=True), fraction)


def test_about_the_fraction_is_held_out() -> None:
    names = [f"package/module_{i}.py" for i in range(10_000)]
    assert 440 <= len(held_out(names, 0.05)) <= 560
    assert 8900 <= len(held_out(names, 0.9)) <= 9100


def test_a_growing_corpus_moves_no_file_to_the_other_side() -> None:
    names = [f"{i}.txt" for i in range(2000)]
    before = held_out(names[:1000], 0.1)
    assert held_out(names, 0.1) & set(names[:1000]) == before


@pytest.mark.parametrize("names", [[], ["only.txt"]])
def test_fewer_than_two_names_cannot_be_split(names: list[str]) -> None:
    with pytest.raises(ConfigError, match=rf"^data.validation_fraction = 0.5: .*only {len(names)} document"):
        held_out(names, 0.5)
