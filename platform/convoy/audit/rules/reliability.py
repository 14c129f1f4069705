"""Interruptions, and what they take. Pure."""

import math

from convoy.audit.facts import Run
from convoy.audit.findings import Finding, claim_line
from convoy.audit.quantities.number import Figure, Span, exactly, read_number
from convoy.audit.solver import Bound, Law, Quantities, Value

_EPSILON = 1e-9
"""Of floating point, on shares."""


def laws(run: Run) -> list[Law]:
    """Of one run."""
    q = run.quantity
    return [
        Law(((q("mtbf"), 1), (q("interruptions"), 1), (q("time"), -1))),
        Law(((q("lost_time"), 1), (q("interruptions"), -1), (q("recovery_time"), -1))),
        Law(((q("lost_share"), 1), (q("time"), 1), (q("lost_time"), -1))),
        Law(((q("recovered"), 1), (q("recovery_rate"), -1), (q("interruptions"), -1))),
    ]


def stated(run: Run) -> Quantities:
    """What goodput leaves for all else."""
    goodput = run.claims.goodput
    if not goodput or goodput[0].value >= 1:
        return {}
    span = Span(max(1 - goodput[0].high, 0.0), 1 - goodput[0].value, 1 - goodput[0].low)
    text = f"1 - {goodput[0].text} goodput"
    return {run.quantity("not_good"): [Value(span, run.rests_on("goodput"), text)]}


def bounds(run: Run) -> list[Bound]:
    q = run.quantity
    return [
        Bound(
            q("lost_share"), q("not_good"), "contradiction", "recoveries alone take more of the time than goodput has"
        ),
        Bound(q("recovered"), q("interruptions"), "impossible", "more were recovered than there were"),
        Bound(q("recovery_rate"), Span(1, 1, 1), "impossible", "no more are recovered than there were"),
    ]


def findings(run: Run) -> list[Finding]:
    """Of n interruptions a whole number was recovered: 7 of 7 are not 99.2 %, near as that is. Of about n nothing so
    exact is known."""
    claims = run.claims
    if not claims.recovery_rate or not claims.interruptions:
        return []
    rate, n = claims.recovery_rate[0], _number(claims.interruptions[0])
    recovered = _number(claims.recovered[0]) if claims.recovered else None
    if not n or rate.low > 1 or (claims.recovered and recovered is None):
        return []
    if recovered is not None and rate.span.apart(exactly(recovered / n)):
        return []  # which is reported as any other contradiction
    possible = {min(max(k, 0), n) for k in (math.floor(rate.value * n), math.ceil(rate.value * n))}
    possible = possible if recovered is None else {recovered}
    if any(_is_rounded_to(rate, k / n) for k in possible):
        return []
    fractions = " and ".join(f"{k}/{n} = {100 * k / n:.4g} %" for k in sorted(possible))
    keys = ("recovery_rate", "interruptions") if recovered is None else ("recovery_rate", "recovered", "interruptions")
    if recovered is None:
        line = f"of {n} interruptions no number is {rate.text}: the nearest are {fractions}"
    else:
        line = f"{recovered} of {n} interruptions = {100 * recovered / n:.4g} %, not {rate.text}"
    lines = tuple(claim_line(run.claim(key), getattr(claims, key)[0].text) for key in keys)
    return [Finding(kind="contradiction", claims=lines, arithmetic=line)]


def _number(count: Figure) -> int | None:
    """None: it is approximate."""
    return round(count.value) if count.low == count.value == count.high else None


def _is_rounded_to(rate: Figure, share: float) -> bool:
    """Rounded, or cut down after the last digit: 2,999 of 3,000 are 99.9 % to whoever would not claim 100."""
    if rate.low - _EPSILON <= share <= rate.high + _EPSILON:
        return True
    number = read_number(rate.text)
    if rate.low == rate.high or number.approximate or not number.span.value:
        return False
    last_place = 10.0 ** -len(number.digits.partition(".")[2]) * rate.value / number.span.value
    return rate.value - _EPSILON <= share < rate.value + last_place - _EPSILON
