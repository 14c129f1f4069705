"""From the claims of a page to what of them cannot be true. Pure."""

from collections.abc import Sequence

from convoy.audit.claims import SETTINGS, PageClaims
from convoy.audit.comparisons import differing_outcomes, other_gpus, scaling_laws
from convoy.audit.facts import PAGE, Section, parts_of, runs_of, stated
from convoy.audit.finding_text import claim_texts, claims_of, finding
from convoy.audit.findings import WRONG, Audit, Finding, Implied, Near, claim_line
from convoy.audit.laws import run_bounds, run_laws
from convoy.audit.parts import limits, part_bounds, part_laws
from convoy.audit.quantities.format import written, written_range
from convoy.audit.solver import Bound, Law, Quantities, Solved, Value, compare, follow, minimal
from convoy.catalog.references import nearest

_ORDER = (
    "bandwidth", "bus_bandwidth", "algorithm_bandwidth", "scaling_efficiency", "speedup", "mfu", "hfu",
    "tflops_per_gpu", "time", "cost_per_token", "cost", "spot_share", "gpu_hours", "compute", "step_time", "tokens",
    "steps", "batch_tokens", "batch", "size", "save_time", "overhead", "throughput", "throughput_per_gpu",
)  # fmt: skip
"""Of quantities, that which a contradiction is reported by: what a page boasts of before what it measured."""

_GRAVITY = ("contradiction", "impossible", "unlikely", "cannot be checked")

_NO_FIGURES = frozenset({"variant", "relative_to", "offload", "operation", "scope", "to", "contents"})
"""Keys that say what other claims are about."""

_IMPLIED = (
    "throughput", "throughput_per_gpu", "mfu", "step_time", "tokens", "time", "gpu_hours", "total_price_per_hour",
    "cost", "cost_per_token", "speedup", "scaling_efficiency", "state_per_gpu", "lost_share", "size", "bandwidth",
    "overhead",
)  # fmt: skip
"""Quantities that are reported of a run that does not state them, in this order; others are steps to these."""


def audit(page: PageClaims) -> Audit:
    """Its findings, and what it implies."""
    runs = runs_of(page)
    parts = parts_of(page, runs)
    values, solved = _solved(runs, parts)
    texts: dict[str, str] = {}
    for section in (*runs, *parts):
        texts |= claim_texts(section)
    findings = [finding(clash, texts, runs) for clash in minimal(solved.clashes, _ORDER)]
    findings += differing_outcomes(runs)
    findings += [each for run in runs for each in other_gpus(run)]
    # What runs share is reported once.
    findings = sorted(dict.fromkeys(findings), key=lambda each: _GRAVITY.index(each.kind))
    return Audit(
        page=page.page,
        consistent=not any(each.kind in WRONG for each in findings),
        findings=tuple(findings),
        not_checked=(*_unchecked(solved, values, texts, runs, findings), *_uncatalogued(runs)),
        implied=tuple(_implied(solved.quantities)),
        references=tuple(_references(runs, solved.quantities)),
        claims=sum(name.rpartition(".")[2] not in _NO_FIGURES for name in texts),
    )


def _solved(runs: Sequence[Section], parts: Sequence[Section]) -> tuple[Quantities, Solved]:
    values: Quantities = {}
    laws: list[Law] = scaling_laws(runs)
    bounds: list[Bound] = []
    for run in runs:
        values |= stated(run)
        laws += run_laws(run)
        bounds += run_bounds(run)
    for part in parts:
        values |= stated(part) | limits(part)
        laws += part_laws(part)
        bounds += part_bounds(part)
    return values, compare(follow(values, laws, written), bounds)


def _unchecked(
    solved: Solved, values: Quantities, texts: dict[str, str], runs: Sequence[Section], findings: Sequence[Finding]
) -> list[Finding]:
    """Figures that were compared with nothing."""
    figures = {name for each in values.values() for value in each for name in claims_of(value.of)}
    involved = {line.split(" = ")[0] for each in findings for line in each.claims}
    line = "nothing else on the page, and nothing in the catalog, implies it"
    is_below = any(run.scope != PAGE for run in runs)
    return [
        Finding(
            kind="cannot be checked",
            claims=(claim_line(name, texts[name]),),
            arithmetic=f"{line}; runs take settings from the top of the file, and this is none"
            if is_below and name.startswith(f"{PAGE}.")
            else line,
        )
        for name in texts
        if name in figures - solved.compared - involved and name.rpartition(".")[2] not in SETTINGS
    ]


def _uncatalogued(runs: Sequence[Section]) -> list[Finding]:
    missing = []
    for run in runs:
        for key, entry in (("gpu", run.kind), ("instance", run.machine)):
            if run.word(key) and entry is None:
                line = claim_line(run.claim(key), run.word(key))
                missing.append(Finding(kind="cannot be checked", claims=(line,), arithmetic="not in the catalog"))
    return list(dict.fromkeys(missing))


def _implied(quantities: Quantities) -> list[Implied]:
    """The shortest way to what the page does not say."""
    implied = []
    scopes = dict.fromkeys(quantity.rpartition("/")[0] for quantity in quantities)
    if any(scope.startswith("runs") for scope in scopes):
        scopes.pop(PAGE, None)  # settings of theirs
    for quantity in (f"{scope}/{name}" for scope in scopes for name in _IMPLIED):
        value = _shortest(quantities[quantity]) if quantities.get(quantity) else None
        if value is not None and value.arithmetic and value.arithmetic != value.text:
            text = f"{value.text}{written_range(quantity, value.span)}"
            implied.append(Implied(quantity=quantity.replace("/", "."), value=text, arithmetic=value.arithmetic))
    return implied


def _shortest(values: Sequence[Value]) -> Value:
    return min(values, key=lambda value: (bool(value.arithmetic), len(value.of), len(value.arithmetic)))


def _references(runs: Sequence[Section], quantities: Quantities) -> list[Near]:
    """Once for all runs of a model on such GPUs."""
    near: dict[tuple[str, int], Near] = {}
    for run in runs:
        sizes, is_measured = (
            quantities.get(run.quantity("parameters")),
            run.quantity("throughput_per_gpu") in quantities,
        )
        if run.kind is None or not sizes or not sizes[0].span.value or not is_measured:
            continue
        for at, each in enumerate(nearest(run.kind.name, sizes[0].span.value)):
            near.setdefault((each.model + each.gpu + str(each.gpus), at), Near(run=run.scope, **each.model_dump()))
    return list(near.values())
