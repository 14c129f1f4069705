"""From the claims of a page to what of them cannot be true. Pure."""

from collections.abc import Sequence

from convoy.audit.claims import OPTIONS, SETTINGS, PageClaims
from convoy.audit.comparisons import differing_outcomes, gpu_mismatches, scaling_laws
from convoy.audit.facts import PAGE, Section, parts_of, runs_of, stated_quantities
from convoy.audit.findings import WRONG, Audit, Finding, Implied, claim_line
from convoy.audit.laws import run_bounds, run_laws
from convoy.audit.parts import machine_limits, part_bounds, part_laws
from convoy.audit.quantities.format import range_text, value_text
from convoy.audit.solver import (
    CATALOG,
    Bound,
    Clash,
    Law,
    Quantities,
    SolveResult,
    Value,
    derive_values,
    find_clashes,
    minimal_clashes,
    without_catalog,
)

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
    values, solved = _solve_sections(runs, parts)
    texts: dict[str, str] = {}
    for section in (*runs, *parts):
        texts |= _claim_texts(section)
    findings = [_clash_finding(clash, texts) for clash in minimal_clashes(solved.clashes, _ORDER)]
    findings += differing_outcomes(runs)
    findings += [each for run in runs for each in gpu_mismatches(run)]
    # What runs share is reported once.
    findings = sorted(dict.fromkeys(findings), key=lambda each: _GRAVITY.index(each.kind))
    return Audit(
        page=page.page,
        consistent=not any(each.kind in WRONG for each in findings),
        findings=tuple(findings),
        not_checked=(*_unchecked_claims(solved, values, texts, runs, findings), *_uncatalogued_hardware(runs)),
        implied=tuple(_implied_values(solved.quantities)),
        claims=sum(name.rpartition(".")[2] not in _NO_FIGURES for name in texts),
    )


def _solve_sections(runs: Sequence[Section], parts: Sequence[Section]) -> tuple[Quantities, SolveResult]:
    values: Quantities = {}
    laws: list[Law] = scaling_laws(runs)
    bounds: list[Bound] = []
    for run in runs:
        values |= stated_quantities(run)
        laws += run_laws(run)
        bounds += run_bounds(run)
    for part in parts:
        values |= stated_quantities(part) | machine_limits(part)
        laws += part_laws(part)
        bounds += part_bounds(part)
    return values, find_clashes(derive_values(values, laws, value_text), bounds)


def _claim_texts(section: Section) -> dict[str, str]:
    """What each claim of a section says, by its name."""
    texts: dict[str, str] = {}
    for key, entry in section.claims.entries.items():
        name = section.claim_name(key)
        if isinstance(entry, str) and entry != OPTIONS.get(key, ("",))[0] and key not in ("id", "run"):
            texts[name] = entry
        for at, figure in enumerate(section.figures(key)):
            texts[f"{name}[{at + 1}]" if len(section.figures(key)) > 1 else name] = figure.text
    return texts


def _clash_finding(clash: Clash, texts: dict[str, str]) -> Finding:
    stated, implied = clash.stated, clash.implied
    if clash.why:
        line = f"{stated.arithmetic}{range_text(clash.quantity, stated.span)}" if stated.arithmetic else stated.text
        line += f", more than {implied.arithmetic or implied.text}" if implied.text else ""
        line += f": {clash.why}"
    else:
        line = f"{stated.text} is not {implied.text}"
        if implied.arithmetic:
            line = f"{implied.arithmetic}{range_text(clash.quantity, implied.span)}, not {stated.text}"
        if stated.arithmetic and stated.arithmetic != stated.text:
            line += f" ({stated.arithmetic})"
    return Finding(
        kind=clash.kind,
        claims=tuple(claim_line(name, _text_of_claim(texts, name)) for name in sorted(without_catalog(clash.claims))),
        arithmetic=line,
        given=tuple(sorted(each.removeprefix(CATALOG) for each in clash.claims if each.startswith(CATALOG))),
    )


def _text_of_claim(texts: dict[str, str], name: str) -> str:
    """Of a claim, or of all under its key."""
    return texts.get(name) or ", ".join(text for key, text in texts.items() if key.startswith(f"{name}["))


def _unchecked_claims(
    solved: SolveResult, values: Quantities, texts: dict[str, str], runs: Sequence[Section], findings: Sequence[Finding]
) -> list[Finding]:
    """Figures that were compared with nothing."""
    figures = {name for each in values.values() for value in each for name in without_catalog(value.of)}
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


def _uncatalogued_hardware(runs: Sequence[Section]) -> list[Finding]:
    missing = []
    for run in runs:
        for key, entry in (("gpu", run.kind), ("instance", run.machine)):
            if run.word(key) and entry is None:
                line = claim_line(run.claim_name(key), run.word(key))
                missing.append(Finding(kind="cannot be checked", claims=(line,), arithmetic="not in the catalog"))
    return list(dict.fromkeys(missing))


def _implied_values(quantities: Quantities) -> list[Implied]:
    """The shortest way to what the page does not say."""
    implied = []
    scopes = dict.fromkeys(quantity.rpartition("/")[0] for quantity in quantities)
    if any(scope.startswith("runs") for scope in scopes):
        scopes.pop(PAGE, None)  # settings of theirs
    for quantity in (f"{scope}/{name}" for scope in scopes for name in _IMPLIED):
        value = _simplest_value(quantities[quantity]) if quantities.get(quantity) else None
        if value is not None and value.arithmetic and value.arithmetic != value.text:
            text = f"{value.text}{range_text(quantity, value.span)}"
            implied.append(Implied(quantity=quantity.replace("/", "."), value=text, arithmetic=value.arithmetic))
    return implied


def _simplest_value(values: Sequence[Value]) -> Value:
    return min(values, key=lambda value: (bool(value.arithmetic), len(value.of), len(value.arithmetic)))
