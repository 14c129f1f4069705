"""GPUs against the machines that are to have them. Pure."""

from convoy.audit.facts import Run
from convoy.audit.findings import Finding, claim_line
from convoy.audit.machines import MIB


def findings(run: Run) -> list[Finding]:
    return [*_kind(run), *_whole_machines(run)]


def _kind(run: Run) -> list[Finding]:
    """Another GPU, or one with another memory, than the machine has."""
    claims, kind, told = run.claims, run.kind, run.machine
    if kind is None or told is None or not claims.gpu:
        return []
    has = f"{told.gpus} {told.gpu.name} of {told.gpu.memory_mib / 1024:.0f} GiB" if told.gpu else "no GPU"
    memory = told.gpu.memory_mib * MIB if told.gpu else 0
    fits = kind.memory is None or kind.memory.low * 0.95 <= memory <= kind.memory.high * 1.05
    if told.gpu is not None and told.gpu.name == kind.name and fits:
        return []
    lines = (claim_line(run.claim("gpu"), claims.gpu), claim_line(run.claim("instance"), claims.instance))
    line = f"a {told.name} has {has}, not {claims.gpu}"
    return [Finding(kind="contradiction", claims=lines, arithmetic=line, given=(told.name,))]


def _whole_machines(run: Run) -> list[Finding]:
    """A number of GPUs that whole machines do not have."""
    claims, told = run.claims, run.machine
    if told is None or not told.gpus or not claims.gpus or claims.nodes:
        return []
    gpus = round(claims.gpus[0].value)
    if gpus < told.gpus or gpus % told.gpus == 0:
        return []
    lines = (claim_line(run.claim("gpus"), claims.gpus[0].text), claim_line(run.claim("instance"), claims.instance))
    line = f"{gpus} GPUs / {told.gpus} in a {told.name} = {gpus / told.gpus:.3g} machines"
    return [Finding(kind="unlikely", claims=lines, arithmetic=line, given=(told.name,))]
