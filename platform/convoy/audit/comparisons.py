"""What two runs of a page imply of each other, and what a machine says of the GPUs that a page gives it. Pure."""

import itertools
from collections.abc import Sequence

from convoy.audit.claims import IDENTITY
from convoy.audit.facts import Section
from convoy.audit.findings import Finding, claim_line
from convoy.audit.laws import law
from convoy.audit.machines import MIB
from convoy.audit.quantities.number import Figure
from convoy.audit.solver import Law

_SAME = 0.02
"""By which two rates of the same run may differ."""

_MACHINES = {"model", "parameters", "gpu", "gpus", "nodes", "gpus_per_node", "instance"}
"""Settings that a page states once, and means for all of it; of any other, a run that does not state it may be another
one."""

_OUTCOMES = ("throughput", "throughput_per_gpu", "samples_per_second", "step_time", "mfu", "memory_per_gpu")


def scaling_laws(runs: Sequence[Section]) -> list[Law]:
    """Speedup and scaling efficiency over the run that they are relative to, or over one GPU where there is none."""
    laws = []
    for run in runs:
        base, of = _baseline_run(run, runs), run.claims_on("relative_to")
        if base is None:
            laws.append(law(run, "scaling_efficiency = speedup / gpus"))
            continue
        laws.append(law(run, "speedup = throughput / other.throughput", rests_on=of, other=base))
        if run.gpus != base.gpus or not run.gpus:  # else it is a comparison of other settings
            per_gpu = "scaling_efficiency = throughput_per_gpu / other.throughput_per_gpu"
            laws.append(law(run, per_gpu, rests_on=of, other=base))
            laws.append(law(run, "scaling_efficiency = speedup * other.gpus / gpus", rests_on=of, other=base))
    return laws


def _baseline_run(run: Section, runs: Sequence[Section]) -> Section | None:
    """The one that it names, else the one with the fewest GPUs."""
    if run.word("relative_to"):
        return next((each for each in runs if each.word("id") == run.word("relative_to")), None)
    if not run.claims_on("speedup", "scaling_efficiency"):
        return None
    smaller = [each for each in runs if each.claims_on("throughput", "throughput_per_gpu") and 0 < each.gpus < run.gpus]
    return min(smaller, key=lambda each: each.gpus, default=None)


def differing_outcomes(runs: Sequence[Section]) -> list[Finding]:
    """Other outcomes of the same settings."""
    differing = []
    for first, second in itertools.combinations(runs, 2):
        for key in _OUTCOMES if _have_same_settings(first, second) else ():
            own, other = first.figures(key), second.figures(key)
            if own and other and own[0].per == other[0].per and own[0].span.apart(other[0].span, _SAME):
                differing.append(_outcome_finding(first, second, key, own[0], other[0]))
                break
    return differing


def _have_same_settings(first: Section, second: Section) -> bool:
    """Whether the page names no difference between the two; what it gives a speedup of is another run."""
    for run, base in ((first, second), (second, first)):
        if run.word("relative_to") and run.word("relative_to") == base.word("id"):
            return False
    is_sized = False
    for key in IDENTITY:
        own, other = first.figures(key) or first.word(key), second.figures(key) or second.word(key)
        if own and other:
            if _normalized_setting(own) != _normalized_setting(other):
                return False
            is_sized = is_sized or key in ("gpus", "nodes")
        elif bool(own) != bool(other) and key not in _MACHINES:
            return False
    return is_sized


def _outcome_finding(first: Section, second: Section, key: str, own: Figure, other: Figure) -> Finding:
    low, high = sorted((own.value, other.value))
    size = f"{first.gpus:g} GPUs" if first.gpus else "machines"
    apart = f": {100 * (high / low - 1):.3g} % apart" if low > 0 else ""
    line = f"{own.text} and {other.text} for the same run on {size}{apart}; what differs belongs in `variant`"
    claims = (claim_line(first.claim_name(key), own.text), claim_line(second.claim_name(key), other.text))
    return Finding(kind="contradiction", claims=claims, arithmetic=line)


def _normalized_setting(setting: object) -> object:
    return tuple(each.value for each in setting) if isinstance(setting, tuple) else str(setting).strip().casefold()


def gpu_mismatches(run: Section) -> list[Finding]:
    """Another GPU, or one with another memory, than the machine has."""
    gpu, kind, machine = run.word("gpu"), run.kind, run.machine
    if kind is None or machine is None or not gpu:
        return []
    has = f"{machine.gpus} {machine.gpu.name} of {machine.gpu.memory_mib / 1024:.0f} GiB" if machine.gpu else "no GPU"
    if machine.gpu is not None and machine.gpu.name == kind.name:
        size, memory = machine.gpu.memory_mib * MIB, kind.memory
        if memory is None or memory.low * 0.95 <= size <= memory.high * 1.05:
            return []
    lines = (claim_line(run.claim_name("gpu"), gpu), claim_line(run.claim_name("instance"), run.word("instance")))
    line = f"a {machine.name} has {has}, not {gpu}"
    return [Finding(kind="contradiction", claims=lines, arithmetic=line, given=(machine.name,))]
