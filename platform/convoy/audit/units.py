"""From text with a unit to a figure in base units: tokens, seconds, bytes, bytes per second, dollars, shares, FLOP, W,
J.

Pure. A number without a unit is in the default one of its key, which docs/audit.md tells.
"""

import re
from collections.abc import Callable
from typing import Literal

from convoy.audit import amounts, dollars, physical
from convoy.audit.prefixes import TOKENS, Parsed
from convoy.audit.span import Figure

Dimension = Literal[
    "exact", "message", "exact_bandwidth", "count", "size", "batch", "rate", "samples", "time", "bytes", "bandwidth",
    "money", "price", "unit_price", "share", "ratio", "flops", "flop", "power", "energy", "number", "gpu_hours",
]  # fmt: skip


_REMARK = re.compile(r"(?<=\S)\s+\([^()]*\)$")
"""`300B tokens (180B unique)`."""


def parse(dimension: Dimension, text: str) -> Figure:
    """Raises ValueError with what would be right. What stands in brackets after the figure is a remark."""
    span, per = _PARSERS[dimension](_REMARK.sub("", text.strip()))
    return Figure(text=text.strip(), low=span.low, value=span.value, high=span.high, per=per)


_PARSERS: dict[Dimension, Callable[[str], Parsed]] = {
    "exact": amounts.whole_number,
    "number": amounts.plain_number,
    "gpu_hours": amounts.gpu_hours,
    "count": amounts.count,
    "size": amounts.model_parameters,
    "batch": amounts.batch,
    "rate": physical.rate_of(TOKENS, "145,267 tokens/s, or 4,540 tokens/s/GPU"),
    "samples": physical.rate_of(r"(?:samples?|sequences?|seqs?)?", "70.9 samples/s"),
    "time": physical.duration,
    "bytes": physical.size_in_bytes,
    "message": physical.message_bytes,
    "bandwidth": physical.bandwidth,
    "exact_bandwidth": physical.exact_bandwidth,
    "money": dollars.money,
    "price": dollars.price,
    "unit_price": dollars.unit_price,
    "share": amounts.share,
    "ratio": amounts.ratio,
    "flops": physical.flops("t", "a rate of operations, e.g. 312 TFLOP/s"),
    "flop": physical.flops("", "a number of operations, e.g. 6.3e22 FLOP"),
    "power": physical.power,
    "energy": physical.energy,
}
