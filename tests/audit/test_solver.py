"""What follows is computed for every factor of a product, and of contradictions the smallest are told."""

from convoy.audit.quantities.format import value_text
from convoy.audit.quantities.number import exactly
from convoy.audit.solver import Bound, Clash, Law, Quantities, Value, derive_values, find_clashes, minimal_clashes

AREA = Law((("area", 1), ("width", -1), ("height", -1)))


def told(**figures: float) -> Quantities:
    return {name: [Value(exactly(value), frozenset({name}), f"{value:g}")] for name, value in figures.items()}


def clashes(known: Quantities, *bounds: Bound) -> list[Clash]:
    return minimal_clashes(find_clashes(derive_values(known, [AREA], value_text), bounds).clashes, ("area",))


def test_a_product_is_solved_for_each_of_its_factors() -> None:
    known = derive_values(told(area=12, width=3), [AREA], value_text)
    (height,) = known["height"]
    assert height.span.value == 4
    assert height.of == {"area", "width"}
    assert height.arithmetic == "12 / 3 = 4"


def test_what_agrees_does_not_clash() -> None:
    assert clashes(told(area=12, width=3, height=4)) == []


def test_a_contradiction_is_told_once_by_the_quantity_that_comes_first() -> None:
    (clash,) = clashes(told(area=20, width=3, height=4))
    assert (clash.quantity, clash.stated.text, clash.implied.arithmetic) == ("area", "20", "3 × 4 = 12")
    assert clash.claims == {"area", "width", "height"}


def test_a_bound_is_held_against_what_follows() -> None:
    bound = Bound("height", exactly(3.0), "impossible", "the room is no higher")
    (clash,) = clashes(told(area=12, width=3), bound)
    assert (clash.kind, clash.stated.arithmetic) == ("impossible", "12 / 3 = 4")


def test_of_a_claim_that_clashes_in_many_ways_the_shortest_are_told() -> None:
    """20 is wrong by five products of which each takes a step more, and by one that takes one."""
    laws = [AREA, *(Law((("area", 1), (f"a{n}", -1), (f"b{n}", -1))) for n in range(5))]
    laws += [Law(((f"a{n}", 1), (f"c{n}", -1), (f"d{n}", -1))) for n in range(5)]
    figures = {f"{name}{n}": 1.0 for name in "bcd" for n in range(5)}
    known = derive_values(told(area=20, width=1, height=1, **figures), laws, value_text)
    found = minimal_clashes(find_clashes(known, ()).clashes, ("area",))
    assert len(found) == 3
    assert found[0].implied.arithmetic == "1 × 1 = 1"


def test_nothing_is_divided_by_nothing() -> None:
    known = derive_values(told(area=12, width=0), [AREA], value_text)
    assert known.get("height", []) == []
