"""GPUs: whether machines have them, and what states take of their memory. Pure.

AdamW in mixed precision has 16 bytes per parameter: parameters and gradients of 2 bytes, and 12 of the optimizer, or 4
of each of four (Rajbhandari et al. 2020, "ZeRO", section 3.1).
"""

from convoy.audit.facts import Run
from convoy.audit.findings import Finding, claim_line
from convoy.audit.machines import MIB
from convoy.audit.quantities.number import Span, exactly
from convoy.audit.solver import Bound, Law

STATE_BYTES = 16.0

_WHOLE = {"ddp": 16.0, "zero1": 4.0, "zero2": 2.0}
"""Bytes per parameter that every GPU has, of 16; the rest is divided."""


def laws(run: Run) -> list[Law]:
    """Bytes of states in a GPU."""
    claims, q = run.claims, run.quantity
    gpus = run.gpus
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
    words = f"({whole / shared:g} + {total - whole:g} / {gpus:g}) bytes"
    return [Law((state, parameters), exactly(each), words, of | run.rests_on("gpus", "nodes", "gpus_per_node"))]


def bounds(run: Run) -> list[Bound]:
    q = run.quantity
    states = "parameters, gradients and optimizer alone do not fit in a GPU"
    return [
        Bound(q("state_per_gpu"), q("gpu_memory"), "impossible", states),
        Bound(q("state_per_gpu"), q("memory_per_gpu"), "contradiction", "the states alone take more than that"),
        Bound(q("memory_per_gpu"), q("gpu_memory"), "impossible", "a GPU has no more memory"),
    ]


def findings(run: Run) -> list[Finding]:
    return [*_kind(run), *_whole_machines(run)]


def _kind(run: Run) -> list[Finding]:
    """Another GPU, or one with another memory, than the machine has."""
    claims, kind, machine = run.claims, run.kind, run.machine
    if kind is None or machine is None or not claims.gpu:
        return []
    has = f"{machine.gpus} {machine.gpu.name} of {machine.gpu.memory_mib / 1024:.0f} GiB" if machine.gpu else "no GPU"
    memory = machine.gpu.memory_mib * MIB if machine.gpu else 0
    fits = kind.memory is None or kind.memory.low * 0.95 <= memory <= kind.memory.high * 1.05
    if machine.gpu is not None and machine.gpu.name == kind.name and fits:
        return []
    lines = (claim_line(run.claim("gpu"), claims.gpu), claim_line(run.claim("instance"), claims.instance))
    line = f"a {machine.name} has {has}, not {claims.gpu}"
    return [Finding(kind="contradiction", claims=lines, arithmetic=line, given=(machine.name,))]


def _whole_machines(run: Run) -> list[Finding]:
    """A number of GPUs that whole machines do not have."""
    claims, machine = run.claims, run.machine
    if machine is None or not machine.gpus or not claims.gpus or claims.nodes:
        return []
    gpus = round(claims.gpus[0].value)
    if gpus < machine.gpus or gpus % machine.gpus == 0:
        return []
    lines = (claim_line(run.claim("gpus"), claims.gpus[0].text), claim_line(run.claim("instance"), claims.instance))
    line = f"{gpus} GPUs / {machine.gpus} in a {machine.name} = {gpus / machine.gpus:.3g} machines"
    return [Finding(kind="unlikely", claims=lines, arithmetic=line, given=(machine.name,))]
