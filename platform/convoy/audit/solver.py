"""What figures imply of each other: products are solved for each of their factors, and clashes are reported.

Every value knows the claims that it rests on, so that of many ways to the same contradiction the one that needs the
fewest claims is reported (de Kleer 1986, "An Assumption-based TMS": environments and minimal nogoods). Pure.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from convoy.audit.claims import SETTINGS
from convoy.audit.quantities.number import Span, exactly

Kind = Literal["contradiction", "impossible", "unlikely", "cannot be checked"]
ClaimNames = frozenset[str]

CATALOG = "catalog: "
"""Begins the name of a fact that is no claim of the page."""

_MAX_STEPS = 4
"""Of arithmetic, for one more thing that is wrong with a claim of which something is reported already."""

_MAX_REPORTED = 3
"""Contradictions of one claim that need more than a step of arithmetic."""

_ROUNDS = 6
_MAX_WAYS = 6
"""Values of one quantity that are followed up: those that need the fewest claims."""


class Value(NamedTuple):
    """A quantity as a claim states it, or as others imply it."""

    span: Span
    of: ClaimNames
    text: str
    """As it is written, or is to be."""
    arithmetic: str = ""
    """How it follows; empty for what the page or the catalog states."""


class Law(NamedTuple):
    """constant = product of the quantities, each to its power (1 or -1)."""

    powers: tuple[tuple[str, int], ...]
    constant: Span = exactly(1.0)
    words: str = ""
    """Of the constant, in the arithmetic: `6 FLOP per parameter`."""
    rests_on: ClaimNames = frozenset()
    """Claims behind the constant."""
    unsolved: tuple[str, ...] = ()
    """Quantities that it is not solved for: a number of machines does not follow from their price."""


class Bound(NamedTuple):
    """A quantity is at most another one, or at most a figure."""

    quantity: str
    most: str | Span
    kind: Kind
    why: str


class Clash(NamedTuple):
    """Two values that cannot both be true."""

    quantity: str
    stated: Value
    implied: Value
    kind: Kind = "contradiction"
    why: str = ""

    @property
    def claims(self) -> ClaimNames:
        return self.stated.of | self.implied.of


Quantities = dict[str, list[Value]]


class SolveResult(NamedTuple):
    """All values of all quantities, what clashes, and the claims that were compared with something."""

    quantities: Quantities
    clashes: tuple[Clash, ...]
    compared: ClaimNames


Write = Callable[[str, Span], str]
"""How figures of a quantity are written, so that the solver knows no units."""


def derive_values(stated: Mapping[str, Sequence[Value]], laws: Sequence[Law], write: Write) -> Quantities:
    """With everything that follows."""
    quantities = {quantity: list(values) for quantity, values in stated.items()}
    for _ in range(_ROUNDS):
        solutions = [each for law in laws for each in _solutions(law, quantities, write)]
        if not sum(_add_if_new(quantities, quantity, value) for quantity, value in solutions):
            break
    return quantities


def find_clashes(quantities: Quantities, bounds: Sequence[Bound]) -> SolveResult:
    """What of all that is known clashes with other values, or with bounds."""
    clashes: list[Clash] = []
    compared: set[str] = set()
    for quantity, values in quantities.items():
        for first, second in itertools.combinations(values, 2):
            compared |= first.of | second.of
            if first.span.apart(second.span) and without_catalog(first.of | second.of):
                # Stated figures come first.
                stated, implied = sorted((first, second), key=lambda v: (bool(v.arithmetic), len(v.of)))
                clashes.append(Clash(quantity, stated, implied))
    for bound in bounds:
        limit = bound.most
        limits = [Value(limit, frozenset(), "")] if isinstance(limit, Span) else quantities.get(limit, [])
        for value, most in itertools.product(quantities.get(bound.quantity, ()), limits):
            compared |= value.of | most.of
            if value.span.above(most.span):
                clashes.append(Clash(bound.quantity, value, most, bound.kind, bound.why))
    return SolveResult(quantities, tuple(clashes), frozenset(compared))


def minimal_clashes(clashes: Iterable[Clash], order: Sequence[str]) -> list[Clash]:
    """One for each smallest set of claims: of quantities the first in `order` whose claim is stated."""
    rank = {name: at for at, name in enumerate(order)}

    def report_order(c: Clash) -> tuple[object, ...]:
        name = c.quantity.rpartition("/")[2]
        return (len(c.claims), bool(c.stated.arithmetic), rank.get(name, len(rank)), len(c.implied.arithmetic))

    chosen: list[tuple[Clash, ClaimNames, ClaimNames]] = []
    for clash in sorted(clashes, key=report_order):
        claims = without_catalog(clash.claims)
        if any(of <= claims and _hides(each, clash) for each, of, _ in chosen):
            continue
        blamed, steps = _without_settings(claims), _arithmetic_steps(clash)
        through_same = sum(bool(of & blamed) and _hides(each, clash) for each, _, of in chosen)
        if (steps > _MAX_STEPS and through_same) or (steps > 1 and through_same >= _MAX_REPORTED):
            continue
        chosen.append((clash, claims, blamed))
    return [clash for clash, _, _ in chosen]


def _arithmetic_steps(clash: Clash) -> int:
    return sum(value.arithmetic.count(";") + bool(value.arithmetic) for value in (clash.stated, clash.implied))


def _without_settings(claims: ClaimNames) -> ClaimNames:
    """Claims that are no settings."""
    keys = {each: re.sub(r"\[\d+\]$", "", each).rpartition(".")[2] for each in without_catalog(claims)}
    return frozenset(each for each, key in keys.items() if key not in SETTINGS)


def _hides(first: Clash, other: Clash) -> bool:
    """Whether it need not be reported again: what is unlikely does not hide what is wrong."""
    return first.kind != "unlikely" or other.kind == "unlikely"


def without_catalog(claims: ClaimNames) -> ClaimNames:
    """Without the catalog's facts."""
    return frozenset(each for each in claims if not each.startswith(CATALOG))


def _solutions(law: Law, quantities: Quantities, write: Write) -> Iterator[tuple[str, Value]]:
    for quantity, power in law.powers:
        if quantity in law.unsolved:
            continue
        others = [each for each in law.powers if each[0] != quantity]
        if not all(quantities.get(name) for name, _ in others):
            continue
        there = quantities.get(quantity, ())
        for values in itertools.product(*(quantities[name][:_MAX_WAYS] for name, _ in others)):
            of = law.rests_on.union(*(value.of for value in values))
            if any(each.of <= of for each in there):
                continue
            factors = [(value, -exponent * power) for value, (_, exponent) in zip(values, others, strict=True)]
            try:
                span = law.constant.power(power)
                for value, exponent in factors:
                    span = span.times(value.span.power(exponent))
            except (ZeroDivisionError, OverflowError):
                continue
            if len(factors) == 1 and factors[0][1] == 1 and law.constant == exactly(1.0):
                yield quantity, factors[0][0]._replace(of=of)  # the same figure under another name
                continue
            text = write(quantity, span)
            yield quantity, Value(span, of, text, _arithmetic(factors, law, power, text))


def _arithmetic(factors: Sequence[tuple[Value, int]], law: Law, power: int, text: str) -> str:
    """`1 T tokens / 145,267 tokens/s = 79.7 days`, after what was computed for it."""
    above = [value.text for value, exponent in factors if exponent > 0]
    below = [value.text for value, exponent in factors if exponent < 0]
    if law.words:
        (above if power > 0 else below).append(law.words)
    before = dict.fromkeys(value.arithmetic for value, _ in factors if value.arithmetic)
    fraction = " / ".join([" × ".join(above) or "1", *below])
    line = text if fraction == text else f"{fraction} = {text}"
    return "; ".join([*before, line])


def _add_if_new(quantities: Quantities, quantity: str, value: Value) -> bool:
    """Unless what needs no more claims is known already."""
    values = quantities.setdefault(quantity, [])
    if any(each.of <= value.of for each in values):
        return False
    values[:] = sorted([each for each in values if not value.of < each.of] + [value], key=lambda v: len(v.of))
    return True
