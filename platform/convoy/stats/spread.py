"""A measured figure with its spread."""

import math
import statistics
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict


class Spread(BaseModel):
    """Median and quartiles of n measurements."""

    model_config = ConfigDict(frozen=True)

    median: float
    q1: float
    q3: float
    n: int


def spread(values: Iterable[float]) -> Spread | None:
    """The spread of the finite values (quartiles interpolate linearly, as numpy's default); None: there are none."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return None
    if len(finite) == 1:
        return Spread(median=finite[0], q1=finite[0], q3=finite[0], n=1)
    q1, median, q3 = statistics.quantiles(finite, n=4, method="inclusive")
    return Spread(median=median, q1=q1, q3=q3, n=len(finite))
