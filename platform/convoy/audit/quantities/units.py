"""From text with a unit to a figure in base units: tokens, seconds, bytes, bytes per second, dollars, shares, FLOP, W,
J.

Pure. A number without a unit is in the default one of its key, which docs/audit.md tells.
"""

import re
from collections.abc import Callable
from typing import Literal

from convoy.audit.quantities import amounts, dollars, physical
from convoy.audit.quantities.prefixes import TOKENS, Parsed
from convoy.audit.quantities.span import Figure

Dimension = Literal[
    "exact", "message", "exact_bandwidth", "count", "size", "batch", "rate", "samples", "time", "bytes", "bandwidth",
    "money", "price", "unit_price", "share", "ratio", "flops", "flop", "power", "energy", "number", "gpu_hours",
]  # fmt: skip


_REMARK = re.compile(r"(?<=\S)\s+\([^()]*\)$")
"""`300B tokens (180B unique)`."""

_ALL = re.compile(r"(?<=\S)\s+(?:in )?(?:total|aggregated?|combined|overall|altogether)$", re.IGNORECASE)
"""`84 GB total`, which is what a figure is of anyway."""

_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_AS_DIGITS = str.maketrans(_SUPERSCRIPTS, "0123456789")

_ERROR = re.compile(r"^([\d.,]+)\s*([^\d\s±]+)\s*±\s*([\d.,]+)\s*(?:\2)?$")
"""`9 s ± 0.4`."""

_SUMS = frozenset({"bytes", "bandwidth", "exact_bandwidth", "power", "money"})
_SEVERAL = re.compile(r"^(\d+)\s*[x×]\s*(?!10\s*\^)([\d$].*)$")
"""`4 × 100 Gbps` of a machine with four of them."""


def parse(dimension: Dimension, text: str) -> Figure:
    """Raises ValueError with what would be right. What stands in brackets after the figure is a remark."""
    plain, times = _plain(text), 1.0
    several = _SEVERAL.match(plain) if dimension in _SUMS else None
    if several:
        plain, times = several[2], float(several[1])
    (low, value, high), per = _PARSERS[dimension](plain)
    return Figure(
        text=text.strip(), low=low * times, value=value * times, high=high * times, per="" if several else per
    )


def _plain(text: str) -> str:
    """Without remarks, and with superscripts and errors as the parsers have them."""
    text = _REMARK.sub("", text.strip())
    text = re.sub(f"[{_SUPERSCRIPTS}]+", lambda found: f"^{found[0].translate(_AS_DIGITS)}", text)
    text = _ERROR.sub(r"\1 ± \3 \2", text)
    return _ALL.sub("", text)


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
