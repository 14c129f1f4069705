"""Tokens, steps and seconds; operations against the peak. Pure.

6 N + 12 L d S operations per token, of which the attention's term may be left out, or halved for causality (PaLM,
Chowdhery et al. 2022, appendix B).
"""

from convoy.audit.facts import Run, model_size
from convoy.audit.quantities.number import BIG, Span, exactly, hull
from convoy.audit.solver import Bound, Law

MOST_MFU = 0.70
"""Published MFU ends at 64 % (docs/explanation/auditing.md)."""

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

_RECOMPUTED = {"none": exactly(1.0), "full": Span(1.15, 4 / 3, 1.4), "selective": Span(1.0, 1.05, 1.4)}
_USUAL = Span(1.0, 1.0, 1.4)
"""Operations done over those counted: full recomputation does the forward pass, a third of all, once more. Counters
find less where neither a block's last product nor a large head is made again, and more where they count what fused
attention makes again: fms-fsdp's pages have up to 1.38."""


def laws(run: Run) -> list[Law]:
    """Of one run."""
    q, claims = run.quantity, run.claims
    over, of = over_training(run)
    implied = [
        Law(((q("throughput"), 1), (q("throughput_per_gpu"), -1), (q("gpus"), -1))),
        Law(((q("throughput"), 1), (q("throughput_per_node"), -1), (q("nodes"), -1))),
        Law(((q("gpus"), 1), (q("nodes"), -1), (q("gpus_per_node"), -1))),
        Law(((q("time"), 1), (q("throughput"), 1), (q("tokens"), -1)), over, "", of),
        Law(((q("tokens"), 1), (q("steps"), -1), (q("batch_tokens"), -1))),
        Law(((q("batch_tokens"), 1), (q("batch"), -1), (q("sequence_length"), -1))),
        Law(((q("batch_tokens"), 1), (q("throughput"), -1), (q("step_time"), -1))),
        Law(((q("throughput"), 1), (q("samples_per_second"), -1), (q("sequence_length"), -1))),
        Law(((q("batch"), 1), (q("samples_per_second"), -1), (q("step_time"), -1))),
        Law(((q("gpu_hours"), 1), (q("gpus"), -1), (q("time"), -1))),
        Law(((q("gpu_hours"), 1), (q("throughput_per_gpu"), 1), (q("tokens"), -1)), over, "", of),
        Law(((q("time"), 1), (q("steps"), -1), (q("step_time"), -1)), _between_steps(run), "", of),
        *_utilisation(run),
    ]
    if claims.micro_batch and (claims.strategy != "3d" or claims.model_parallel):
        implied.append(_batch(run))
    return implied


def _batch(run: Run) -> Law:
    """Without a word on accumulation there may be some; fewer sequences than one pass of all GPUs there cannot be."""
    q, claims = run.quantity, run.claims
    shared = max(claims.model_parallel[0].value, 1.0) if claims.model_parallel else 1.0
    powers = [(q("batch"), 1), (q("micro_batch"), -1), (q("gpus"), -1)]
    if claims.accumulation:
        powers.append((q("accumulation"), -1))
    words = f"1 / {shared:g} (GPUs that share a sequence)" if shared != 1 else ""
    constant = Span(1 / shared, 1 / shared, (1.0 if claims.accumulation else BIG) / shared)
    return Law(tuple(powers), constant, words, run.rests_on("model_parallel"))


def _between_steps(run: Run) -> Span:
    """Between its steps a run saves, evaluates and starts again: nobody knows for how long where it was interrupted."""
    over, _ = over_training(run)
    is_interrupted = run.claims.interruptions or run.claims.recovery_time
    return hull(over, exactly(BIG if is_interrupted else _BETWEEN_STEPS))


def over_training(run: Run) -> tuple[Span, frozenset[str]]:
    """All of the time over that in which training made progress, and the claims behind it."""
    goodput = run.claims.goodput
    if not goodput or goodput[0].low <= 0:
        return exactly(1.0), frozenset()
    return Span(1.0, 1.0, max(1 / goodput[0].low, 1.0)), run.rests_on("goodput")


def _utilisation(run: Run) -> list[Law]:
    q, claims = run.quantity, run.claims
    done = _RECOMPUTED.get(claims.recomputation, _USUAL)
    of = run.rests_on("recomputation")
    any_way = Span(1.0, 1.0, done.high)
    words = {"full": "4/3 for recomputation", "selective": "1.05 for recomputation"}.get(claims.recomputation, "")
    return [
        _operations(run),
        Law(((q("mfu"), 1), (q("peak"), 1), (q("throughput_per_gpu"), -1), (q("flops_per_token"), -1))),
        Law(((q("hfu"), 1), (q("mfu"), -1)), done, words, of),
        Law(((q("tflops_per_gpu"), 1), (q("mfu"), -1), (q("peak"), -1)), any_way, "", of),
        Law(((q("compute"), 1), (q("flops_per_token"), -1), (q("tokens"), -1)), any_way, "", of),
    ]


def _operations(run: Run) -> Law:
    """Of a token, over the parameters."""
    claims, q = run.claims, run.quantity
    lengths, size = claims.sequence_length, _parameters(run)
    context = lengths[0].span if lengths else exactly(_USUAL_CONTEXT)
    if claims.layers and claims.width and size:
        shape = claims.layers[0].value * claims.width[0].value
        attention, most = (12.0 * shape * tokens / size for tokens in (context.value, context.high))
        of = run.rests_on("layers", "width", "sequence_length")
    elif size:
        width = (size * _ASPECT / 12) ** (1 / 3)
        attention, of = context.value / width, run.rests_on("sequence_length")
        most = (1.5 if lengths else 1.0) * context.high / width
    else:
        attention, most, of = 0.0, 6.0, frozenset()
    usual = 6.0 + attention if lengths else 6.0
    words = f"{usual:.3g} FLOP per parameter"
    parameters = "active_parameters" if claims.active_parameters else "parameters"
    least = _FROZEN if run.adapters else 6.0
    constant = Span(least * (1 - _LOOKED_UP), usual, 6.0 + most)
    return Law(((q("flops_per_token"), 1), (q(parameters), -1)), constant, words, of)


def _parameters(run: Run) -> float | None:
    stated = run.claims.active_parameters or run.claims.parameters
    named = model_size(run.claims.model)
    return stated[0].value if stated else named.value if named else None


def bounds(run: Run) -> list[Bound]:
    q = run.quantity
    most = "published ones end at 64 %"
    return [
        Bound(q("mfu"), exactly(1.0), "impossible", "no GPU does more than its peak"),
        Bound(q("hfu"), exactly(1.0), "impossible", "no GPU does more than its peak"),
        Bound(q("mfu"), exactly(MOST_MFU), "unlikely", f"MFU of more than {MOST_MFU:.0%}: {most}"),
        Bound(q("hfu"), exactly(0.85), "unlikely", "HFU of more than 85 %: published ones end at 80 %"),
        Bound(q("scaling_efficiency"), exactly(1.05), "unlikely", "more GPUs are rarely faster each"),
        Bound(q("goodput"), exactly(1.0), "impossible", "a part of the time is at most all of it"),
        Bound(q("tflops_per_gpu"), q("peak"), "impossible", "no GPU does more than its peak"),
        Bound(q("mfu"), q("hfu"), "contradiction", "HFU counts recomputation on top of MFU"),
    ]
