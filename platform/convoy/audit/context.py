"""What is told beside the findings: claims that nothing checks, what the page implies, and published runs. Pure."""

from collections.abc import Sequence

from convoy.audit.claims import SETTINGS
from convoy.audit.facts import PAGE, Run
from convoy.audit.finding_text import FORM, named
from convoy.audit.findings import Finding, Implied, Near, claim_line
from convoy.audit.parts import Parts
from convoy.audit.rules import collectives, links
from convoy.audit.solver import Known, Solved, Value
from convoy.catalog.references import nearest

_TOLD = (
    "throughput", "throughput_per_gpu", "mfu", "step_time", "tokens", "time", "gpu_hours", "total_price_per_hour",
    "cost",
    "cost_per_token", "speedup", "scaling_efficiency", "state_per_gpu", "tokens_per_joule", "lost_share", "size",
    "bandwidth", "overhead",
)  # fmt: skip
"""Quantities that are told of a run where it does not tell them itself, in this order; others are steps to these."""


def unchecked(
    solved: Solved, given: Known, texts: dict[str, str], parts: Parts, found: Sequence[Finding]
) -> list[Finding]:
    """Figures that were compared with nothing."""
    told = {name for values in given.values() for value in values for name in named(value.of)}
    involved = {line.split(" = ")[0] for each in found for line in each.claims}
    rest = [
        name
        for name in texts
        if name in told
        and name not in solved.compared
        and name not in involved
        and name.rpartition(".")[2] not in SETTINGS
    ]
    line = "nothing else on the page, and nothing in the catalog, implies it"
    above = f"{line}; runs take settings from the top of the file, and this is none"
    below = any(run.scope != PAGE for run in parts.runs)
    bare = [
        Finding(
            kind="cannot be checked",
            claims=(claim_line(name, texts[name]),),
            arithmetic=above if below and name.startswith(f"{PAGE}.") else line,
        )
        for name in rest
    ]
    bare += [each for sent in parts.collectives for each in collectives.unchecked(sent)]
    bare += [each for joined in parts.links for each in links.unchecked(joined)]
    return [*bare, *_unknown_machines(parts.runs)]


def _unknown_machines(runs: Sequence[Run]) -> list[Finding]:
    found = []
    for run in runs:
        for key, known in (("gpu", run.kind), ("instance", run.machine)):
            value = getattr(run.claims, key)
            if value and known is None:
                line = claim_line(run.claim(key), value)
                found.append(Finding(kind="cannot be checked", claims=(line,), arithmetic="not in the catalog"))
    return list(dict.fromkeys(found))


def implied(known: Known) -> list[Implied]:
    """The shortest way to what the page does not say."""
    found = []
    scopes = dict.fromkeys(quantity.rpartition("/")[0] for quantity in known)
    if any(scope.startswith("runs") for scope in scopes):
        scopes.pop(PAGE, None)  # settings of theirs
    for scope in scopes:
        for quantity in (f"{scope}/{name}" for name in _TOLD):
            first = _shortest(known[quantity]) if known.get(quantity) else None
            if first is not None and first.told and first.told != first.text:
                value = f"{first.text}{FORM.range(quantity, first.span)}"
                found.append(Implied(quantity=quantity.replace("/", "."), value=value, arithmetic=first.told))
    return found


def _shortest(values: Sequence[Value]) -> Value:
    return min(values, key=lambda value: (bool(value.told), len(value.of), len(value.told)))


def references(runs: Sequence[Run], known: Known) -> list[Near]:
    """Once for all runs of a model on such GPUs."""
    found: dict[tuple[str, int], Near] = {}
    for run in runs:
        sizes, rates_known = known.get(run.quantity("parameters"), ()), run.quantity("throughput_per_gpu") in known
        if run.kind is None or not sizes or not sizes[0].span.value or not rates_known:
            continue
        for at, each in enumerate(nearest(run.kind.name, sizes[0].span.value)):
            found.setdefault((each.model + each.gpu + str(each.gpus), at), Near(run=run.scope, **each.model_dump()))
    return list(found.values())
