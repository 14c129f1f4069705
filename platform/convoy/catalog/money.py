"""From quantities to whole cents that add up, and the units of what is paid for."""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

HOURS_PER_MONTH = 730
"""In a GB-month, on the average of a year."""

GB = 2**30
"""Bytes of what S3 calls one (its FAQ, "How will I be charged")."""

REQUESTS = 1000
"""Of which S3's prices are."""

_CENT = Decimal("0.01")


def cents(parts: Sequence[Fraction]) -> list[Decimal]:
    """Each part in whole cents, so that together they are the rounded sum: what is left over goes to the parts that
    lost most by rounding down."""
    total = round(sum(parts, start=Fraction(0)) * 100)
    whole = [int(part * 100) for part in parts]
    by_rest = sorted(range(len(parts)), key=lambda i: (whole[i] - parts[i] * 100, i))
    for i in by_rest[: total - sum(whole)]:
        whole[i] += 1
    return [n * _CENT for n in whole]
