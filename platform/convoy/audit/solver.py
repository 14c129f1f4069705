"""What figures imply of each other: products are solved for each of their factors, and what cannot be the same is told.

Every value knows the claims that it rests on, so that of many ways to the same contradiction the one that needs the
fewest claims is told (de Kleer 1986, "An Assumption-based TMS": environments and minimal nogoods). Pure.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from convoy.audit.claims import SETTINGS
from convoy.audit.quantities.number import Span, exactly

Kind = Literal["contradiction", "impossible", "unlikely", "cannot be checked"]
Claims = frozenset[str]

CATALOG = "catalog: "
"""Begins the name of a fact that is no claim of the page."""

_MOST_STEPS = 4
"""Of arithmetic, for one more thing that is wrong with a claim of which something is told already."""

_MOST_TOLD = 3
"""Contradictions of one claim that need more than a step of arithmetic."""

_ROUNDS = 6
_MOST_WAYS = 6
"""Values of one quantity that are followed up: those that need the fewest claims."""


class Value(NamedTuple):
    """A quantity as a claim tells it, or as others imply it."""

    span: Span
    of: Claims
    text: str
    """As it is written, or is to be."""
    told: str = ""
    """The arithmetic; empty for what the page or the catalog tells."""


class Law(NamedTuple):
    """constant = product of the quantities, each to its power (1 or -1)."""

    powers: tuple[tuple[str, int], ...]
    constant: Span = exactly(1.0)
    words: str = ""
    """Of the constant, in the arithmetic: `6 FLOP per parameter`."""
    rests_on: Claims = frozenset()
    """Claims behind the constant."""
    given: tuple[str, ...] = ()
    """Quantities that it is not solved for: a number of machines does not follow from their price."""


class Bound(NamedTuple):
    """A quantity is at most another one, or at most a figure."""

    quantity: str
    most: str | Span
    kind: Kind
    why: str
    rests_on: Claims = frozenset()


class Clash(NamedTuple):
    """Two values that cannot both be true."""

    quantity: str
    told: Value
    implied: Value
    kind: Kind = "contradiction"
    why: str = ""

    @property
    def of(self) -> Claims:
        return self.told.of | self.implied.of


Known = dict[str, list[Value]]


class Solved(NamedTuple):
    """All values of all quantities, what clashes, and the claims that were compared with something."""

    known: Known
    clashes: tuple[Clash, ...]
    compared: Claims


class Writer(Protocol):
    """How figures of a quantity are written, so that the solver knows no units."""

    def write(self, quantity: str, span: Span) -> str: ...


def follow(stated: Mapping[str, Sequence[Value]], laws: Sequence[Law], form: Writer) -> Known:
    """With everything that follows."""
    known = {quantity: list(values) for quantity, values in stated.items()}
    for _ in range(_ROUNDS):
        found = [each for law in laws for each in _solutions(law, known, form)]
        if not sum(_add(known, quantity, value) for quantity, value in found):
            break
    return known


def compare(known: Known, bounds: Sequence[Bound]) -> Solved:
    """What of all that is known clashes with other values, or with bounds."""
    clashes: list[Clash] = []
    compared: set[str] = set()
    for quantity, values in known.items():
        for first, second in itertools.combinations(values, 2):
            compared |= first.of | second.of
            if first.span.apart(second.span) and not _catalog_only(first.of | second.of):
                # What is stated stands first.
                told, implied = sorted((first, second), key=lambda v: (bool(v.told), len(v.of)))
                clashes.append(Clash(quantity, told, implied))
    for bound in bounds:
        for value, most in _pairs(bound, known):
            compared |= value.of | most.of
            if value.span.above(most.span):
                clashes.append(Clash(bound.quantity, value, most, bound.kind, bound.why))
    return Solved(known, tuple(clashes), frozenset(compared))


def minimal(clashes: Iterable[Clash], order: Sequence[str]) -> list[Clash]:
    """One for each smallest set of claims: of quantities the first in `order` whose claim is stated."""
    rank = {name: at for at, name in enumerate(order)}

    def worth(clash: Clash) -> tuple[object, ...]:
        name = clash.quantity.rpartition("/")[2]
        return (len(clash.of), bool(clash.told.told), rank.get(name, len(rank)), len(clash.implied.told))

    kept: list[tuple[Clash, Claims, Claims]] = []
    for clash in sorted(clashes, key=worth):
        claims = _claims(clash.of)
        if any(of <= claims and _as_bad(each, clash) for each, of, _ in kept):
            continue
        blamed = _blamed(claims)
        if _steps(clash) > _MOST_STEPS and any(of & blamed and _as_bad(each, clash) for each, _, of in kept):
            continue
        kept.append((clash, claims, blamed))
    return _shortest([clash for clash, _, _ in kept])


def _shortest(clashes: Sequence[Clash]) -> list[Clash]:
    """On a page that tells much, one wrong claim clashes in dozens of ways: of those through the claim that most have
    in common the shortest, and so on with the rest."""
    suspects = [_suspects(each) for each in clashes]
    rest, told = list(range(len(clashes))), set[int]()
    while rest:
        suspect, _ = Counter(each for at in rest for each in suspects[at]).most_common(1)[0]
        through = [at for at in rest if suspect in suspects[at]]
        told |= set(through[:_MOST_TOLD]) | {at for at in through if _steps(clashes[at]) <= 1}
        rest = [at for at in rest if suspect not in suspects[at]]
    return [clashes[at] for at in sorted(told)]


def _suspects(clash: Clash) -> list[tuple[bool, str]]:
    """What may be wrong, rather an outcome than a setting; what is unlikely stands apart."""
    return [(clash.kind == "unlikely", name) for name in sorted(_blamed(clash.of) or clash.of)]


def _steps(clash: Clash) -> int:
    return sum(value.told.count(";") + bool(value.told) for value in (clash.told, clash.implied))


def _blamed(of: Claims) -> Claims:
    """Claims that are no settings."""
    return frozenset(each for each in _claims(of) if re.sub(r"\[\d+\]$", "", each).rpartition(".")[2] not in SETTINGS)


def _as_bad(known: Clash, other: Clash) -> bool:
    """Whether it need not be told again: what is unlikely does not hide what is wrong."""
    return known.kind != "unlikely" or other.kind == "unlikely"


def _claims(of: Claims) -> Claims:
    """Without the catalog's facts."""
    return frozenset(each for each in of if not each.startswith(CATALOG))


def _catalog_only(of: Claims) -> bool:
    return not _claims(of)


def _pairs(bound: Bound, known: Known) -> Iterator[tuple[Value, Value]]:
    for value in known.get(bound.quantity, ()):
        if isinstance(bound.most, Span):
            yield value, Value(bound.most, bound.rests_on, "")
        else:
            for most in known.get(bound.most, ()):
                yield value, most._replace(of=most.of | bound.rests_on)


def _solutions(law: Law, known: Known, form: Writer) -> Iterator[tuple[str, Value]]:
    for quantity, power in law.powers:
        if quantity in law.given:
            continue
        others = [each for each in law.powers if each[0] != quantity]
        if not all(known.get(name) for name, _ in others):
            continue
        there = known.get(quantity, ())
        for values in itertools.product(*(known[name][:_MOST_WAYS] for name, _ in others)):
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
            text = form.write(quantity, span)
            yield quantity, Value(span, of, text, _told(factors, law, power, text))


def _told(factors: Sequence[tuple[Value, int]], law: Law, power: int, text: str) -> str:
    """`1 T tokens / 145,267 tokens/s = 79.7 days`, after what was computed for it."""
    above = [value.text for value, exponent in factors if exponent > 0]
    below = [value.text for value, exponent in factors if exponent < 0]
    if law.words:
        (above if power > 0 else below).append(law.words)
    before = dict.fromkeys(value.told for value, _ in factors if value.told)
    fraction = " / ".join([" × ".join(above) or "1", *below])
    line = text if fraction == text else f"{fraction} = {text}"
    return "; ".join([*before, line])


def _add(known: Known, quantity: str, value: Value) -> bool:
    """Unless what needs no more claims is known already."""
    values = known.setdefault(quantity, [])
    if any(each.of <= value.of for each in values):
        return False
    values[:] = sorted([each for each in values if not value.of < each.of] + [value], key=lambda v: len(v.of))
    return True
