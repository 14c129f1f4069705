"""From clashes to findings: the claims behind each with their text, and the arithmetic in a line. Pure."""

from collections.abc import Sequence

from convoy.audit.claims import Claims
from convoy.audit.facts import Run
from convoy.audit.findings import Finding, claim_line
from convoy.audit.quantities.format import written_range
from convoy.audit.quantities.number import Figure, Span, exactly
from convoy.audit.solver import CATALOG, Clash


def claim_texts(claims: Claims, scope: str, owner: dict[str, str]) -> dict[str, str]:
    """What each claim of a section says, by its name. owner: the scope of each key that is in another one."""
    texts: dict[str, str] = {}
    for key, field in type(claims).model_fields.items():
        value, name = getattr(claims, key), f"{owner.get(key, scope)}.{key}"
        if value == field.default or key in ("id", "run", "page"):
            continue
        if isinstance(value, tuple) and all(isinstance(each, Figure) for each in value):
            for at, figure in enumerate(value):
                texts[f"{name}[{at + 1}]" if len(value) > 1 else name] = figure.text
        elif not isinstance(value, tuple):
            texts[name] = str(value)
    return texts


def finding(clash: Clash, texts: dict[str, str], runs: Sequence[Run]) -> Finding:
    stated, implied = clash.stated, clash.implied
    between = written_range(clash.quantity, implied.span) if implied.arithmetic else ""
    if clash.kind == "contradiction" and not clash.why:
        line = f"{stated.text} is not {implied.text}"
        if implied.arithmetic:
            line = f"{implied.arithmetic}{between}, not {stated.text}"
        if stated.arithmetic and stated.arithmetic != stated.text:
            line += f" ({stated.arithmetic})"
    else:
        between = written_range(clash.quantity, stated.span) if stated.arithmetic else ""
        line = f"{stated.arithmetic or stated.text}{between}"
        if implied.text and implied.text not in clash.why:
            line += f", more than {implied.arithmetic or implied.text}"
        line += f": {clash.why}"
    explained = hint(clash.quantity, stated.span, implied.span, _gang(clash, runs)) if not clash.why else ""
    return Finding(
        kind=clash.kind,
        claims=tuple(claim_line(name, _text(texts, name)) for name in named(clash.of)),
        arithmetic=line,
        hint=explained,
        given=tuple(sorted(each.removeprefix(CATALOG) for each in clash.of if each.startswith(CATALOG))),
    )


def _text(texts: dict[str, str], name: str) -> str:
    """Of a claim, or of all under its key."""
    return texts.get(name) or ", ".join(text for key, text in texts.items() if key.startswith(f"{name}["))


def named(of: frozenset[str]) -> list[str]:
    return sorted(each for each in of if not each.startswith(CATALOG))


def _gang(clash: Clash, runs: Sequence[Run]) -> dict[str, float]:
    scope = clash.quantity.rpartition("/")[0]
    run = next((each for each in runs if each.scope == scope), None)
    if run is None:
        return {}
    each, nodes = run.gpus_per_node, run.claims.nodes
    gpus = run.claims.gpus[0].value if run.claims.gpus else 0.0
    machines = nodes[0].value if nodes else gpus / each if each else 0.0
    return {"gpus": gpus or machines * each, "nodes": machines, "gpus_per_node": each}


_TIMES = ((24.0, "days for hours"), (60.0, "minutes for seconds, or hours for minutes"), (3600.0, "hours for seconds"),
          (7.0, "weeks for days"), (1000.0, "seconds for milliseconds"))  # fmt: skip
_BITS = (8.0, "bits for bytes")
_BINARY = (2.0**30 / 1e9, "GiB for GB")
_THOUSANDS = ((1e3, "a factor of a thousand (k, M or B)"), (1e6, "a factor of a million (M, B or T)"))

_BY_QUANTITY: dict[str, tuple[tuple[float, str], ...]] = {
    "time": _TIMES, "step_time": _TIMES, "save_time": _TIMES, "load_time": _TIMES, "mtbf": _TIMES, "interval": _TIMES,
    "recovery_time": _TIMES, "stall": _TIMES,
    "bandwidth": (_BITS, *_THOUSANDS),
    "size": (_BITS, _BINARY, *_THOUSANDS), "memory_per_gpu": (_BITS, _BINARY),
    "mfu": ((4 / 3, "hardware FLOPs utilisation (with recomputation) for model FLOPs utilisation"),
            (2.0, "a peak with sparsity for the dense one")),
    "peak": ((2.0, "a peak with sparsity for the dense one"),),
    "cost_per_token": _THOUSANDS, "tokens": _THOUSANDS, "cost": _THOUSANDS, "parameters": _THOUSANDS,
    "tflops_per_gpu": ((2.0, "a peak with sparsity for the dense one"),),
}  # fmt: skip

_OF_GANG = frozenset(
    {
        "throughput", "throughput_per_gpu", "throughput_per_node", "cost", "cost_per_token", "gpu_hours", "time",
        "bandwidth",
        "price_per_hour", "total_price_per_hour", "price_per_gpu_hour", "batch", "batch_tokens", "samples_per_second",
        "tokens", "step_time", "speedup", "scaling_efficiency",
    }
)  # fmt: skip
"""Of one GPU, one machine, or all."""

_NEAR = 0.015

_ROUNDED = 0.06
"""Of what is stated with a digit or two, at most."""


def hint(quantity: str, stated: Span, implied: Span, gang: dict[str, float]) -> str:
    """The usual confusion by whose factor the two miss each other, or nothing. gang: GPUs, nodes, and GPUs per node."""
    name = quantity.rpartition("/")[2]
    usual = [*_BY_QUANTITY.get(name, ()), *(_gang_factors(gang) if name in _OF_GANG else ())]
    matching = [(factor, words) for factor, words in usual if _explains(factor, stated, implied)]
    if not matching:
        return ""
    # A factor of 8 is bits for bytes, and a machine of 8 GPUs for one of them.
    first = matching[0][0]
    return f"a factor of {first:.4g}: {', or '.join(words for factor, words in matching if factor == first)}?"


def _explains(factor: float, stated: Span, implied: Span) -> bool:
    """By the value alone: wide bounds would explain anything, and so would an open end."""
    near = Span(stated.value * (1 - _ROUNDED), stated.value, stated.value * (1 + _ROUNDED))
    stated = Span(max(stated.low, near.low), stated.value, min(stated.high, near.high))
    return any(
        not stated.apart(exactly(implied.value * direction), _NEAR) and abs(direction - 1) > 0.05
        for direction in (factor, 1 / factor)
    )


def _gang_factors(gang: dict[str, float]) -> list[tuple[float, str]]:
    words = {
        "gpus": "one GPU for all of them",
        "nodes": "one machine for all of them",
        "gpus_per_node": "GPU for machine",
    }
    return [
        (gang[key], f"{confused}, or the other way round") for key, confused in words.items() if gang.get(key, 1) > 1
    ]
