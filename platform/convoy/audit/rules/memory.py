"""What states take of a GPU's memory. Pure.

AdamW in mixed precision has 16 bytes per parameter: parameters and gradients of 2 bytes, and 12 of the optimizer, or 4
of each of four (Rajbhandari et al. 2020, "ZeRO", section 3.1).
"""

from convoy.audit.facts import Run
from convoy.audit.quantities.number import Span, exactly
from convoy.audit.solver import Bound, Law

STATE_BYTES = 16.0

_WHOLE = {"ddp": 16.0, "zero1": 4.0, "zero2": 2.0}
"""Bytes per parameter that every GPU has, of 16; the rest is divided."""


def laws(run: Run) -> list[Law]:
    """Of one run whose number of GPUs is known."""
    claims, q = run.claims, run.quantity
    gpus = _gpus(run)
    if run.adapters and not claims.bytes_per_parameter:
        return []
    if claims.offload or (claims.active_parameters and not claims.parameters):
        return []
    total = claims.bytes_per_parameter[0].value if claims.bytes_per_parameter else STATE_BYTES
    shared = max(claims.model_parallel[0].value, 1.0) if claims.model_parallel else 1.0
    whole = _WHOLE.get(claims.strategy, 0.0) / STATE_BYTES * total
    of = run.rests_on("strategy", "bytes_per_parameter", "model_parallel")
    state, parameters = (q("state_per_gpu"), 1), (q("parameters"), -1)
    words = f"{total:g} bytes"
    if whole == total:
        words = f"{words} (on every GPU)" if shared == 1 else f"{words} / {shared:g} (GPUs that share a model)"
        return [Law((state, parameters), exactly(total / shared), words, of)]
    if claims.strategy == "hsdp":
        # GPUs that share a model may be of several nodes.
        divided = Span(1 / shared, 1.0, 1.0)
        powers = (state, parameters, (q("gpus_per_node"), 1))
        return [Law(powers, divided.times(exactly(total)), f"{words} (divided in a node)", of)]
    if not whole:
        return [Law((state, parameters, (q("gpus"), 1)), exactly(total), f"{words} (divided over all GPUs)", of)]
    if not gpus:
        return []
    each = whole / shared + (total - whole) / gpus
    told = f"({whole / shared:g} + {total - whole:g} / {gpus:g}) bytes"
    return [Law((state, parameters), exactly(each), told, of | run.rests_on("gpus", "nodes", "gpus_per_node"))]


def _gpus(run: Run) -> float | None:
    claims = run.claims
    if claims.gpus:
        return claims.gpus[0].value
    each = claims.gpus_per_node[0].value if claims.gpus_per_node else run.machine.gpus if run.machine else 0
    return claims.nodes[0].value * each if claims.nodes and each else None


def bounds(run: Run) -> list[Bound]:
    q = run.quantity
    states = "parameters, gradients and optimizer alone do not fit in a GPU"
    return [
        Bound(q("state_per_gpu"), q("gpu_memory"), "impossible", states),
        Bound(q("state_per_gpu"), q("memory_per_gpu"), "contradiction", "the states alone take more than that"),
        Bound(q("memory_per_gpu"), q("gpu_memory"), "impossible", "a GPU has no more memory"),
    ]
