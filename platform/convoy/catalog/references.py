"""Throughput that others published, each with its day and source."""

import math
from datetime import date

from pydantic import Field

from convoy.catalog import table
from convoy.config.base import Frozen

_ALIKE = 3.0
"""Models up to so many times as large, or as small, are near."""


class Reference(Frozen):
    """One published run."""

    model: str
    parameters: int = Field(gt=0)
    gpu: str
    """With its memory, e.g. `A100 40 GB`."""
    gpus: int = Field(ge=1)
    sequence_length: int = Field(ge=1)
    """Tokens."""
    tokens_per_second_per_gpu: float = Field(gt=0)
    mfu: float = Field(gt=0, lt=1)
    """Of the dense peak in bf16, as published."""
    date: date
    """Of the publication."""
    source: str


def references() -> tuple[Reference, ...]:
    """All that the catalog has."""
    data = table("references")
    return tuple(Reference(**{**row, "source": data["sources"][row["source"]]}) for row in data["references"])


def nearest(gpu: str, parameters: float, most: int = 3) -> tuple[Reference, ...]:
    """On GPUs of that family, e.g. `A100`, the models whose size is nearest; none is more than three times as large."""
    alike = [each for each in references() if each.gpu.split()[0] == gpu]
    apart = {each: abs(math.log(each.parameters / parameters)) for each in alike}
    near = [each for each in alike if apart[each] <= math.log(_ALIKE)]
    return tuple(sorted(near, key=lambda each: apart[each])[:most])
