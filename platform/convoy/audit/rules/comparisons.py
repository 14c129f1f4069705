"""What two runs of a page imply of each other. Pure."""

import itertools
from collections.abc import Sequence

from convoy.audit.claims import IDENTITY
from convoy.audit.facts import Run
from convoy.audit.findings import Finding, claim_line
from convoy.audit.quantities.number import Figure
from convoy.audit.solver import Law

_SAME = 0.02
"""By which two rates of the same run may differ."""

_MACHINES = {"model", "parameters", "gpu", "gpus", "nodes", "gpus_per_node", "instance"}
"""Settings that a page states once, and means for all of it; of any other, a run that does not state it may be another
one."""

_OUTCOMES = ("throughput", "throughput_per_gpu", "samples_per_second", "step_time", "mfu", "memory_per_gpu")


def laws(runs: Sequence[Run]) -> list[Law]:
    """Speedup and scaling efficiency over the run that they are relative to, or over one GPU where there is none."""
    implied = []
    for run in runs:
        q, base = run.quantity, base_of(run, runs)
        if base is None:
            implied.append(Law(((q("scaling_efficiency"), 1), (q("gpus"), 1), (q("speedup"), -1))))
            continue
        of, other = run.rests_on("relative_to"), base.quantity
        implied.append(Law(((q("speedup"), 1), (q("throughput"), -1), (other("throughput"), 1)), rests_on=of))
        if run.gpus == base.gpus != 0:
            continue  # a comparison of other settings
        efficiency, own, base_rate = q("scaling_efficiency"), q("throughput_per_gpu"), other("throughput_per_gpu")
        implied.append(Law(((efficiency, 1), (own, -1), (base_rate, 1)), rests_on=of))
        sizes = ((q("gpus"), 1), (q("speedup"), -1), (other("gpus"), -1))
        implied.append(Law(((efficiency, 1), *sizes), rests_on=of))
    return implied


def base_of(run: Run, runs: Sequence[Run]) -> Run | None:
    """The one that it names, else the only other one with fewer GPUs."""
    if run.claims.relative_to:
        return next((each for each in runs if each.claims.id == run.claims.relative_to), None)
    if not (run.claims.speedup or run.claims.scaling_efficiency):
        return None
    measured = [each for each in runs if each.claims.throughput or each.claims.throughput_per_gpu]
    smaller = [each for each in measured if each is not run and 0 < each.gpus < run.gpus]
    return min(smaller, key=lambda each: each.gpus, default=None)


def same(first: Run, second: Run) -> bool:
    """Whether the page names no difference between the two."""
    if _compared(first, second) or _compared(second, first):
        return False
    sized = False
    for key in IDENTITY:
        own, other = getattr(first.claims, key), getattr(second.claims, key)
        if own and other:
            if _words(own) != _words(other):
                return False
            sized = sized or key in ("gpus", "nodes")
        elif bool(own) != bool(other) and key not in _MACHINES:
            return False
    return sized


def _compared(run: Run, base: Run) -> bool:
    """What a page gives a speedup of is another run."""
    return bool(run.claims.relative_to) and run.claims.relative_to == base.claims.id


def findings(runs: Sequence[Run]) -> list[Finding]:
    """Other outcomes of the same settings."""
    differing = []
    for first, second in itertools.combinations(runs, 2):
        if not same(first, second):
            continue
        for key in _OUTCOMES:
            own, other = getattr(first.claims, key), getattr(second.claims, key)
            if own and other and own[0].per == other[0].per and own[0].span.apart(other[0].span, _SAME):
                differing.append(_differ(first, second, key, own[0], other[0]))
                break
    return differing


def _differ(first: Run, second: Run, key: str, own: Figure, other: Figure) -> Finding:
    low, high = sorted((own.value, other.value))
    size = f"{first.gpus:g} GPUs" if first.gpus else "machines"
    apart = f": {100 * (high / low - 1):.3g} % apart" if low > 0 else ""
    line = f"{own.text} and {other.text} for the same run on {size}{apart}"
    claims = (claim_line(first.claim(key), own.text), claim_line(second.claim(key), other.text))
    hint = "what differs between the two is told by `variant`, if something does"
    return Finding(kind="contradiction", claims=claims, arithmetic=line, hint=hint)


def _words(setting: object) -> object:
    return tuple(each.value for each in setting) if isinstance(setting, tuple) else str(setting).strip().casefold()
