"""From clashes to findings: the claims behind each with their text, and the arithmetic in a line. Pure."""

from collections.abc import Sequence

from convoy.audit.claims import OPTIONS
from convoy.audit.facts import Section
from convoy.audit.findings import Finding, claim_line
from convoy.audit.quantities.format import written_range
from convoy.audit.quantities.number import Span, exactly
from convoy.audit.solver import CATALOG, Clash

_NEAR = 0.015

_ROUNDED = 0.06
"""Of what is stated with a digit or two, at most."""

_MOST_IDLE = 4.0
"""Over a bandwidth that was measured at most is what the links have, where it is taken for bits."""

_TIMES = ((24.0, "days for hours"), (60.0, "minutes for seconds, or hours for minutes"), (3600.0, "hours for seconds"),
          (7.0, "weeks for days"), (1000.0, "seconds for milliseconds"))  # fmt: skip
_BITS = (8.0, "bits for bytes")
_THOUSANDS = ((1e3, "a factor of a thousand (k, M or B)"), (1e6, "a factor of a million (M, B or T)"))
_SPARSE = (2.0, "a peak with sparsity for the dense one")
_CONFUSIONS: dict[str, tuple[tuple[float, str], ...]] = {
    **dict.fromkeys(("time", "step_time", "save_time", "load_time", "mtbf", "interval", "recovery_time"), _TIMES),
    **dict.fromkeys(("bandwidth", "algorithm_bandwidth", "bus_bandwidth", "size"), (_BITS, *_THOUSANDS)),
    **dict.fromkeys(("cost_per_token", "tokens", "cost", "parameters"), _THOUSANDS),
    **dict.fromkeys(("peak", "tflops_per_gpu"), (_SPARSE,)),
    "mfu": ((4 / 3, "hardware FLOPs utilisation (with recomputation) for model FLOPs utilisation"), _SPARSE),
}
"""By quantity, factors by which two figures usually miss each other, and what was taken for what."""

_OF_GANG = frozenset(
    {
        "throughput", "throughput_per_gpu", "throughput_per_node", "cost", "cost_per_token", "gpu_hours", "time",
        "price_per_hour", "total_price_per_hour", "price_per_gpu_hour", "batch", "batch_tokens", "samples_per_second",
        "tokens", "step_time", "speedup", "scaling_efficiency",
    }
)  # fmt: skip
"""Of one GPU, one machine, or all."""


def claim_texts(section: Section) -> dict[str, str]:
    """What each claim of a section says, by its name."""
    texts: dict[str, str] = {}
    for key, entry in section.claims.entries.items():
        name = section.claim(key)
        if isinstance(entry, str) and entry != OPTIONS.get(key, ("",))[0] and key not in ("id", "run"):
            texts[name] = entry
        for at, figure in enumerate(section.figures(key)):
            texts[f"{name}[{at + 1}]" if len(section.figures(key)) > 1 else name] = figure.text
    return texts


def claims_of(of: frozenset[str]) -> list[str]:
    """Without the catalog's facts."""
    return sorted(each for each in of if not each.startswith(CATALOG))


def finding(clash: Clash, texts: dict[str, str], runs: Sequence[Section]) -> Finding:
    stated, implied = clash.stated, clash.implied
    if clash.why:
        line = f"{stated.arithmetic}{written_range(clash.quantity, stated.span)}" if stated.arithmetic else stated.text
        line += f", more than {implied.arithmetic or implied.text}" if implied.text else ""
        line += f": {clash.why}"
    else:
        line = f"{stated.text} is not {implied.text}"
        if implied.arithmetic:
            line = f"{implied.arithmetic}{written_range(clash.quantity, implied.span)}, not {stated.text}"
        if stated.arithmetic and stated.arithmetic != stated.text:
            line += f" ({stated.arithmetic})"
    return Finding(
        kind=clash.kind,
        claims=tuple(claim_line(name, _text(texts, name)) for name in claims_of(clash.of)),
        arithmetic=line,
        hint=_hint(clash, runs),
        given=tuple(sorted(each.removeprefix(CATALOG) for each in clash.of if each.startswith(CATALOG))),
    )


def _text(texts: dict[str, str], name: str) -> str:
    """Of a claim, or of all under its key."""
    return texts.get(name) or ", ".join(text for key, text in texts.items() if key.startswith(f"{name}["))


def _hint(clash: Clash, runs: Sequence[Section]) -> str:
    """The usual confusion by whose factor the two miss each other, or nothing."""
    scope, _, name = clash.quantity.rpartition("/")
    stated, implied = clash.stated, clash.implied
    if clash.why:
        eighth = stated.span.scaled(1 / 8)
        is_bits = "bandwidth" in name and not eighth.above(implied.span)
        is_bits = is_bits and eighth.value * _MOST_IDLE > implied.span.high and "bit" not in stated.text.lower()
        return "bits for bytes?" if is_bits and "bps" not in stated.text.lower() else ""
    usual = list(_CONFUSIONS.get(name, ()))
    run = next((each for each in runs if each.scope == scope), None)
    if run is not None and name in _OF_GANG:
        # A factor of 8 is bits for bytes, and a machine of 8 GPUs for one of them.
        sizes = ((run.gpus, "one GPU for all of them"), (run.nodes, "one machine for all of them"),
                 (run.gpus_per_node, "GPU for machine"))  # fmt: skip
        usual += [(size, f"{words}, or the other way round") for size, words in sizes if size > 1]
    matching = [(factor, words) for factor, words in usual if _explains(factor, stated.span, implied.span)]
    if not matching:
        return ""
    first = matching[0][0]
    return f"a factor of {first:.4g}: {', or '.join(words for factor, words in matching if factor == first)}?"


def _explains(factor: float, stated: Span, implied: Span) -> bool:
    """By the value alone: wide bounds would explain anything, and so would an open end."""
    low, high = stated.value * (1 - _ROUNDED), stated.value * (1 + _ROUNDED)
    near = Span(max(stated.low, low), stated.value, min(stated.high, high))
    directions = (factor, 1 / factor)
    return any(not near.apart(exactly(implied.value * each), _NEAR) and abs(each - 1) > 0.05 for each in directions)
