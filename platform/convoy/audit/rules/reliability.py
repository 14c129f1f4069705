"""Interruptions, what they take, and shares of a whole. Pure."""

import math

from convoy.audit.facts import Run
from convoy.audit.findings import Finding, claim_line
from convoy.audit.quantities.number import Figure, Span, exactly, last_place, read_number, rounded
from convoy.audit.solver import Bound, Law, Quantities, Value

_SHARES = 0.005
"""By which parts of a whole may miss 100 %, beyond their rounding."""

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
    return [*_parts(run), *_whole_numbers(run)]


def _parts(run: Run) -> list[Finding]:
    """That they add up to 100 %."""
    parts = {name: figures[0] for name, figures in run.claims.shares.items() if figures}
    if len(parts) < 2:
        return []
    low, value, high = (sum(getattr(each, side) for each in parts.values()) for side in ("low", "value", "high"))
    line = f"{' + '.join(each.text for each in parts.values())} = {100 * value:.4g} %"
    claims = tuple(claim_line(run.claim(f"shares.{name}"), each.text) for name, each in parts.items())
    if low > 1 + _SHARES:
        return [Finding(kind="contradiction", claims=claims, arithmetic=f"{line}, more than 100 %")]
    if high < 1 - _SHARES:
        return [Finding(kind="unlikely", claims=claims, arithmetic=f"{line}, and nothing is said of the rest")]
    return []


def _whole_numbers(run: Run) -> list[Finding]:
    """Of n interruptions a whole number was recovered. Of about n nothing so exact is known."""
    claims = run.claims
    if not claims.recovery_rate or not claims.interruptions:
        return []
    rate, n = claims.recovery_rate[0], _number(claims.interruptions[0])
    if not n or rate.low > 1:
        return []
    if claims.recovered:
        return _of_whole_numbers(run, _number(claims.recovered[0]), n, rate)
    near = sorted({min(max(k, 0), n) for k in (math.floor(rate.value * n), math.ceil(rate.value * n))})
    if any(_is_rounded_to(rate, k / n) for k in near):
        return []
    fractions = " and ".join(f"{k}/{n} = {100 * k / n:.4g} %" for k in near)
    lines = [("recovery_rate", rate.text), ("interruptions", claims.interruptions[0].text)]
    claim_lines = tuple(claim_line(run.claim(key), text) for key, text in lines)
    arithmetic = f"of {n} interruptions no number is {rate.text}: the nearest are {fractions}"
    return [Finding(kind="contradiction", claims=claim_lines, arithmetic=arithmetic)]


def _of_whole_numbers(run: Run, recovered: int | None, n: int, rate: Figure) -> list[Finding]:
    """Where both are exact there is nothing to be rounded but the rate: 7 of 7 are not 99.2 %, near as that is.
    What is farther off is reported as any other contradiction."""
    if recovered is None:
        return []
    share = recovered / n
    if _is_rounded_to(rate, share) or rate.span.apart(exactly(share)):
        return []
    lines = [("recovery_rate", rate.text), ("recovered", str(recovered)), ("interruptions", str(n))]
    claim_lines = tuple(claim_line(run.claim(key), text) for key, text in lines)
    arithmetic = f"{recovered} of {n} interruptions = {100 * share:.4g} %, not {rate.text}"
    return [Finding(kind="contradiction", claims=claim_lines, arithmetic=arithmetic)]


def _number(count: Figure) -> int | None:
    """None: it is approximate."""
    return round(count.value) if count.low == count.value == count.high else None


def _is_rounded_to(rate: Figure, share: float) -> bool:
    """Rounded, or cut down after the last digit: 2,999 of 3,000 are 99.9 % to whoever would not claim 100."""
    if rate.low - _EPSILON <= share <= rate.high + _EPSILON:
        return True
    if rate.low == rate.high:
        return False
    digits = read_number(rate.text).digits
    if read_number(rate.text).approximate or not rounded(digits).value:
        return False
    place = last_place(digits) * rate.value / rounded(digits).value
    return rate.value - _EPSILON <= share < rate.value + place - _EPSILON
