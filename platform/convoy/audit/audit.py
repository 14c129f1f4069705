"""From the claims of a page to what of them cannot be true. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from convoy.audit.claims import SETTINGS, Claims, PageClaims
from convoy.audit.facts import PAGE, Run, runs_of, stated
from convoy.audit.finding_text import claim_texts, finding, named
from convoy.audit.findings import WRONG, Audit, Finding, Implied, Near, claim_line
from convoy.audit.quantities.format import written, written_range
from convoy.audit.rules import checkpoints, communication, comparisons, hardware, money, reliability, throughput
from convoy.audit.rules.checkpoints import Checkpoint
from convoy.audit.rules.communication import Collective, Link, collective, link
from convoy.audit.solver import Bound, Law, Quantities, Solved, Value, compare, follow, minimal
from convoy.catalog.references import nearest

_SUBJECTS = (throughput, money, hardware, reliability)

_ORDER = (
    "scaling_efficiency", "speedup", "mfu", "hfu", "tflops_per_gpu", "time", "cost_per_token", "cost", "spot_share",
    "gpu_hours", "compute", "step_time", "tokens", "steps", "batch_tokens", "batch", "bandwidth", "size", "save_time",
    "overhead", "throughput", "throughput_per_gpu",
)  # fmt: skip
"""Of quantities, that which a contradiction is reported by: what a page boasts of before what it measured."""

_GRAVITY = ("contradiction", "impossible", "unlikely", "cannot be checked")

_NO_FIGURES = frozenset({"variant", "relative_to", "offload", "directions", "operation", "scope", "to", "contents"})
"""Keys that say what other claims are about."""

_IMPLIED = (
    "throughput", "throughput_per_gpu", "mfu", "step_time", "tokens", "time", "gpu_hours", "total_price_per_hour",
    "cost",
    "cost_per_token", "speedup", "scaling_efficiency", "state_per_gpu", "lost_share", "size",
    "bandwidth", "overhead",
)  # fmt: skip
"""Quantities that are reported of a run that does not state them, in this order; others are steps to these."""


def audit(page: PageClaims) -> Audit:
    """Raises ConfigError for an operation or a link that there is not."""
    parts = parts_of(page)
    solved, stated_values = _solved(parts)
    texts: dict[str, str] = {}
    for run in parts.runs:
        texts |= claim_texts(run.claims, run.scope, run.owner)
    for item in (*parts.checkpoints, *parts.transfers):
        texts |= claim_texts(item.claims, item.scope, {})
    clashes = minimal(solved.clashes, _ORDER)
    problems = [finding(clash, texts, parts.runs) for clash in clashes]
    problems += comparisons.findings(parts.runs)
    for run in parts.runs:
        problems += [
            *reliability.findings(run),
            *hardware.findings(run),
            *money.findings(run),
        ]
    problems += [each for item in parts.transfers for each in communication.findings(item)]
    # What runs share is reported once.
    problems = sorted(dict.fromkeys(problems), key=lambda each: _GRAVITY.index(each.kind))
    return Audit(
        page=page.page,
        consistent=not any(each.kind in WRONG for each in problems),
        findings=tuple(problems),
        not_checked=tuple(unchecked(solved, stated_values, texts, parts, problems)),
        implied=tuple(implied(solved.quantities)),
        references=tuple(references(parts.runs, solved.quantities)),
        claims=sum(name.rpartition(".")[2] not in _NO_FIGURES for name in texts),
    )


class Parts(NamedTuple):
    """Of a page, each with what the catalog has of its machines."""

    runs: list[Run]
    checkpoints: list[Checkpoint]
    transfers: list[Collective | Link]


def parts_of(page: PageClaims) -> Parts:
    runs = runs_of(page)
    by_id = {run.claims.id: run for run in runs if run.claims.id}
    shared = _shared(runs)

    def of(name: str) -> Run | None:
        return by_id[name] if name else shared

    def scopes(section: str, items: Sequence[Claims]) -> list[str]:
        ids = [getattr(each, "id", "") for each in items]
        return [f"{section}.{name}" if name else f"{section}[{at + 1}]" for at, name in enumerate(ids)]

    saved = zip(scopes("checkpoints", page.checkpoints), page.checkpoints, strict=True)
    sent = zip(scopes("collectives", page.collectives), page.collectives, strict=True)
    joined = zip(scopes("links", page.links), page.links, strict=True)
    return Parts(
        runs,
        [Checkpoint(scope, claims, of(claims.run)) for scope, claims in saved],
        [
            *(collective(scope, claims, of(claims.run)) for scope, claims in sent),
            *(link(scope, claims, of(claims.run)) for scope, claims in joined),
        ],
    )


def _shared(runs: Sequence[Run]) -> Run | None:
    """Of what names no run: the only run there is, or what stands at the top of the file."""
    below = [run for run in runs if run.scope != PAGE]
    return below[0] if len(below) == 1 else next((run for run in runs if run.scope == PAGE), None)


def _solved(parts: Parts) -> tuple[Solved, Quantities]:
    stated_values: Quantities = {}
    laws: list[Law] = comparisons.laws(parts.runs)
    bounds: list[Bound] = []
    for run in parts.runs:
        stated_values |= stated(run) | reliability.stated(run)
        laws += [law for subject in _SUBJECTS for law in subject.laws(run)]
        bounds += [*throughput.bounds(run), *money.bounds(run), *hardware.bounds(run), *reliability.bounds(run)]
    for saved in parts.checkpoints:
        stated_values |= checkpoints.stated(saved)
        laws += checkpoints.laws(saved)
        bounds += checkpoints.bounds(saved)
    return compare(follow(stated_values, laws, written), bounds), stated_values


def unchecked(
    solved: Solved, stated: Quantities, texts: dict[str, str], parts: Parts, findings: Sequence[Finding]
) -> list[Finding]:
    """Figures that were compared with nothing."""
    in_claims = {name for values in stated.values() for value in values for name in named(value.of)}
    involved = {line.split(" = ")[0] for each in findings for line in each.claims}
    rest = [
        name
        for name in texts
        if name in in_claims
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
    bare += [each for item in parts.transfers for each in communication.unchecked(item)]
    return [*bare, *_uncatalogued(parts.runs)]


def _uncatalogued(runs: Sequence[Run]) -> list[Finding]:
    missing = []
    for run in runs:
        for key, entry in (("gpu", run.kind), ("instance", run.machine)):
            value = getattr(run.claims, key)
            if value and entry is None:
                line = claim_line(run.claim(key), value)
                missing.append(Finding(kind="cannot be checked", claims=(line,), arithmetic="not in the catalog"))
    return list(dict.fromkeys(missing))


def implied(quantities: Quantities) -> list[Implied]:
    """The shortest way to what the page does not say."""
    results = []
    scopes = dict.fromkeys(quantity.rpartition("/")[0] for quantity in quantities)
    if any(scope.startswith("runs") for scope in scopes):
        scopes.pop(PAGE, None)  # settings of theirs
    for scope in scopes:
        for quantity in (f"{scope}/{name}" for name in _IMPLIED):
            value = _shortest(quantities[quantity]) if quantities.get(quantity) else None
            if value is not None and value.arithmetic and value.arithmetic != value.text:
                text = f"{value.text}{written_range(quantity, value.span)}"
                results.append(Implied(quantity=quantity.replace("/", "."), value=text, arithmetic=value.arithmetic))
    return results


def _shortest(values: Sequence[Value]) -> Value:
    return min(values, key=lambda value: (bool(value.arithmetic), len(value.of), len(value.arithmetic)))


def references(runs: Sequence[Run], quantities: Quantities) -> list[Near]:
    """Once for all runs of a model on such GPUs."""
    near: dict[tuple[str, int], Near] = {}
    for run in runs:
        sizes, has_rate = (
            quantities.get(run.quantity("parameters"), ()),
            run.quantity("throughput_per_gpu") in quantities,
        )
        if run.kind is None or not sizes or not sizes[0].span.value or not has_rate:
            continue
        for at, each in enumerate(nearest(run.kind.name, sizes[0].span.value)):
            near.setdefault((each.model + each.gpu + str(each.gpus), at), Near(run=run.scope, **each.model_dump()))
    return list(near.values())
