"""Laws between the quantities of a page, as equations, and what bounds them. Pure.

6 N + 12 L d S operations per token, of which the attention's term may be left out, or halved for causality (PaLM,
Chowdhery et al. 2022, appendix B). AdamW in mixed precision has 16 bytes of states per parameter (Rajbhandari et al.
2020, "ZeRO", section 3.1).
"""

import re
from collections.abc import Sequence

from convoy.audit.facts import Section, model_size
from convoy.audit.quantities.number import BIG, ONE, Span, exactly, hull
from convoy.audit.solver import Bound, Kind, Law

Row = tuple[str, str | Span, Kind, str]
"""A quantity, what it is at most, what it is otherwise, and why."""

MAX_MFU = 0.70
"""Published MFU ends at 64 % (docs/explanation/auditing.md)."""

MAX_SAVED = exactly(0.91)
"""AWS's own `up to 90 %`, with its rounding."""

_HOURLY = exactly(1 / 3600)

_USUAL_CONTEXT = 4096
"""Tokens of a sequence at most, where the page does not say; attention is a small part of it."""

_LOOKED_UP = 0.07
"""Of the parameters at most: input embeddings, which are not multiplied."""

_BETWEEN_STEPS = 1.15
"""Time of a training over that of its steps, where the page does not state its goodput."""

_FROZEN = 4.0
"""Operations of a token over parameters that have no gradients: forward, and backward through them."""

_ASPECT = 128.0
"""Width over layers of most decoders, from which the width of one of a known size is guessed, within 1.5 of it."""

_RECOMPUTED = {
    "none": (exactly(1.0), ""),
    "full": (Span(1.15, 4 / 3, 1.4), "4/3 for recomputation"),
    "selective": (Span(1.0, 1.05, 1.4), "1.05 for recomputation"),
    "": (Span(1.0, 1.0, 1.4), ""),
}
"""Operations done over those counted: full recomputation does the forward pass, a third of all, once more. Counters
find less where neither a block's last product nor a large head is made again, and more where they count what fused
attention makes again: fms-fsdp's pages have up to 1.38."""

_STATE_BYTES = 16.0

_UNDIVIDED = {"ddp": 16.0, "zero1": 4.0, "zero2": 2.0}
"""Bytes per parameter that every GPU has, of 16; the rest is divided."""

_RUN = """
throughput = throughput_per_gpu * gpus
throughput = throughput_per_node * nodes
throughput = samples_per_second * sequence_length
gpus = nodes * gpus_per_node
tokens = steps * batch_tokens
batch_tokens = batch * sequence_length
batch_tokens = throughput * step_time
batch = samples_per_second * step_time
gpu_hours = gpus * time
mfu = throughput_per_gpu * flops_per_token / peak
cost = cost_per_token * tokens
spot_share = spot_price / on_demand_price
mtbf = time / interruptions
lost_time = interruptions * recovery_time
lost_share = lost_time / time
recovered = recovery_rate * interruptions
"""

_PRICES = """
price_per_hour = price_per_gpu_hour * gpus_per_node
total_price_per_hour = price_per_hour * nodes
total_price_per_hour = price_per_gpu_hour * gpus
"""
"""Not solved for the machines: their number does not follow from their price."""

_PEAK = "no GPU does more than its peak"
_PART = "a part of the time is at most all of it"

_RUN_BOUNDS: list[Row] = [
    ("mfu", exactly(1.0), "impossible", _PEAK),
    ("hfu", exactly(1.0), "impossible", _PEAK),
    ("tflops_per_gpu", "peak", "impossible", _PEAK),
    ("mfu", exactly(MAX_MFU), "unlikely", f"MFU of more than {MAX_MFU:.0%}: published ones end at 64 %"),
    ("hfu", exactly(0.85), "unlikely", "HFU of more than 85 %: published ones end at 80 %"),
    ("mfu", "hfu", "contradiction", "HFU counts recomputation on top of MFU"),
    ("scaling_efficiency", exactly(1.05), "unlikely", "more GPUs are rarely faster each"),
    ("goodput", exactly(1.0), "impossible", _PART),
    ("lost_share", "not_good", "contradiction", "recoveries alone take more of the time than goodput has"),
    ("recovered", "interruptions", "impossible", "more were recovered than there were"),
    ("recovery_rate", exactly(1.0), "impossible", "no more are recovered than there were"),
    ("savings", MAX_SAVED, "unlikely", "spot prices are at most 90 % below those on demand"),
    ("spot_price", "on_demand_price", "contradiction", "spot is never dearer than on demand"),
    ("price_per_hour", "list_price", "unlikely", "no such machine was ever as dear"),
    ("list_price", "price_per_hour", "unlikely", "no such machine was ever as cheap"),
    ("state_per_gpu", "gpu_memory", "impossible", "parameters, gradients and optimizer alone do not fit in a GPU"),
    ("state_per_gpu", "memory_per_gpu", "contradiction", "the states alone take more than that"),
    ("memory_per_gpu", "gpu_memory", "impossible", "a GPU has no more memory"),
]


def law(
    section: Section, equation: str, constant: Span = ONE, words: str = "", rests_on: frozenset[str] = frozenset(),
    unsolved: tuple[str, ...] = (), other: Section | None = None,
) -> Law:  # fmt: skip
    """Of `a = b * c / d`, times the constant. What begins with `other.` is of the other section."""
    left, right = equation.split(" = ")
    powers = [(left, 1)]
    powers += [(name, 1 if sign == "/" else -1) for sign, name in re.findall(r"(^|[*/]) ?([\w.]+)", right)]

    def full_name(name: str) -> str:
        scope, _, own = name.rpartition(".")
        return (other or section).quantity_name(own) if scope else section.quantity_name(own)

    scoped = tuple((full_name(name), power) for name, power in powers)
    return Law(scoped, constant, words, rests_on, tuple(map(full_name, unsolved)))


def bounds(section: Section, rows: Sequence[Row]) -> list[Bound]:
    q = section.quantity_name
    return [Bound(q(name), q(most) if isinstance(most, str) else most, kind, why) for name, most, kind, why in rows]


def run_bounds(run: Section) -> list[Bound]:
    return bounds(run, _RUN_BOUNDS)


def run_laws(run: Section) -> list[Law]:
    over, of = _total_over_training_time(run)
    laws = [law(run, equation) for equation in _RUN.strip().splitlines()]
    laws += [law(run, each, unsolved=("gpus", "nodes", "gpus_per_node")) for each in _PRICES.strip().splitlines()]
    laws += [
        law(run, "time = tokens / throughput", over, rests_on=of),
        law(run, "gpu_hours = tokens / throughput_per_gpu", over, rests_on=of),
        law(run, "time = steps * step_time", _time_over_step_time(run), rests_on=of),
        law(run, "cost = price_per_gpu_hour * gpu_hours", _HOURLY),
        law(run, "cost = total_price_per_hour * time", _HOURLY),
        law(run, "cost_per_token = total_price_per_hour / throughput", over.times(_HOURLY), rests_on=of),
        *_utilisation(run),
        *_batch(run),
        *_state_memory_laws(run),
    ]
    market = run.word("market")
    if market in ("spot", "on_demand"):
        paid = "spot_price" if market == "spot" else "on_demand_price"
        laws.append(law(run, f"price_per_hour = {paid}", rests_on=run.claims_on("market")))
    return laws


def _total_over_training_time(run: Section) -> tuple[Span, frozenset[str]]:
    """All of the time over that in which training made progress, and the claims behind it."""
    goodput = run.span("goodput")
    if not goodput or goodput.low <= 0:
        return exactly(1.0), frozenset()
    return Span(1.0, 1.0, max(1 / goodput.low, 1.0)), run.claims_on("goodput")


def _time_over_step_time(run: Section) -> Span:
    """Between its steps a run saves, evaluates and starts again: nobody knows for how long where it was interrupted."""
    is_interrupted = run.claims_on("interruptions", "recovery_time")
    return hull(_total_over_training_time(run)[0], exactly(BIG if is_interrupted else _BETWEEN_STEPS))


def _utilisation(run: Section) -> list[Law]:
    done, words = _RECOMPUTED[run.word("recomputation")]
    of, any_way = run.claims_on("recomputation"), Span(1.0, 1.0, done.high)
    return [
        _operations(run),
        law(run, "hfu = mfu", done, words, of),
        law(run, "tflops_per_gpu = mfu * peak", any_way, rests_on=of),
        law(run, "compute = flops_per_token * tokens", any_way, rests_on=of),
    ]


def _operations(run: Section) -> Law:
    """Of a token, over the parameters."""
    named = model_size(run.word("model"))
    size = run.value("active_parameters") or run.value("parameters") or (named.value if named else 0.0)
    length = run.span("sequence_length")
    context, shape = length or exactly(_USUAL_CONTEXT), run.value("layers") * run.value("width")
    attention, most, of = 0.0, 6.0, run.claims_on("sequence_length")
    if size and shape:
        attention, most = 12 * shape * context.value / size, 12 * shape * context.high / size
        of = run.claims_on("layers", "width", "sequence_length")
    elif size:
        width = (size * _ASPECT / 12) ** (1 / 3)
        attention, most = context.value / width, (1.5 if length else 1.0) * context.high / width
    usual = 6.0 + attention if length else 6.0
    constant = Span((_FROZEN if run.adapters else 6.0) * (1 - _LOOKED_UP), usual, 6.0 + most)
    parameters = "active_parameters" if run.figures("active_parameters") else "parameters"
    return law(run, f"flops_per_token = {parameters}", constant, f"{usual:.3g} FLOP per parameter", of)


def _batch(run: Section) -> list[Law]:
    """Without a word on accumulation there may be some; fewer sequences than one pass of all GPUs there cannot be."""
    shared = run.value("model_parallel")
    if run.word("strategy") == "3d" and not shared:
        return []
    shared, passes = max(shared, 1.0), run.figures("accumulation")
    equation = "batch = micro_batch * gpus" + (" * accumulation" if passes else "")
    words = f"1 / {shared:g} (GPUs that share a sequence)" if shared != 1 else ""
    constant = Span(1 / shared, 1 / shared, (1.0 if passes else BIG) / shared)
    return [law(run, equation, constant, words, run.claims_on("model_parallel"))]


def _state_memory_laws(run: Section) -> list[Law]:
    """Bytes of states in a GPU."""
    stated, strategy = run.value("bytes_per_parameter"), run.word("strategy")
    is_mixture = run.figures("active_parameters") and not run.figures("parameters")
    if (run.adapters and not stated) or is_mixture or run.word("offload") == "true":
        return []
    total, shared, gpus = stated or _STATE_BYTES, max(run.value("model_parallel"), 1.0), run.gpus
    undivided = _UNDIVIDED.get(strategy, 0.0) / _STATE_BYTES * total
    of, words = run.claims_on("strategy", "bytes_per_parameter", "model_parallel"), f"{total:g} bytes"
    if undivided == total:
        words += " (on every GPU)" if shared == 1 else f" / {shared:g} (GPUs that share a model)"
        return [law(run, "state_per_gpu = parameters", exactly(total / shared), words, of)]
    if strategy == "hsdp":  # GPUs that share a model may be of several nodes
        divided = Span(total / shared, total, total)
        return [law(run, "state_per_gpu = parameters / gpus_per_node", divided, f"{words} (divided in a node)", of)]
    if not undivided:
        return [law(run, "state_per_gpu = parameters / gpus", exactly(total), f"{words} (divided over all GPUs)", of)]
    if not gpus:
        return []
    each = undivided / shared + (total - undivided) / gpus
    words = f"({undivided / shared:g} + {total - undivided:g} / {gpus:g}) bytes"
    return [law(run, "state_per_gpu = parameters", exactly(each), words, of | run.claims_on("gpus", "nodes"))]
