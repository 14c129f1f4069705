"""From the claims of a page to what of them cannot be true. Pure."""

import re
from collections.abc import Sequence
from datetime import date

from convoy.audit.claims import PageClaims
from convoy.audit.context import implied, references, unchecked
from convoy.audit.facts import Run, stated
from convoy.audit.finding_text import FORM, claim_texts, finding
from convoy.audit.findings import WRONG, Audit, Finding, claim_line
from convoy.audit.parts import Parts, parts_of
from convoy.audit.rules import (
    checkpoints,
    collectives,
    comparisons,
    energy,
    hardware,
    links,
    memory,
    money,
    reliability,
    shape,
    throughput,
)
from convoy.audit.solver import Bound, Known, Law, Solved, compare, follow, minimal

_SUBJECTS = (throughput, money, memory, reliability, energy)

_ORDER = (
    "scaling_efficiency", "speedup", "mfu", "hfu", "tflops_per_gpu", "time", "cost_per_token", "cost", "spot_share",
    "gpu_hours", "compute", "step_time", "tokens", "steps", "batch_tokens", "batch", "bandwidth", "size", "save_time",
    "overhead", "throughput", "throughput_per_gpu",
)  # fmt: skip
"""Of quantities, that which a contradiction is told by: what a page boasts of before what it measured."""

_GRAVITY = ("contradiction", "impossible", "unlikely", "cannot be checked")

_NO_FIGURES = frozenset({"variant", "relative_to", "offload", "directions", "operation", "scope", "to", "contents"})
"""Keys that tell what other claims are about."""


def audit(page: PageClaims) -> Audit:
    """Raises ConfigError for an operation or a link that there is not."""
    parts = parts_of(page)
    solved, given = _solved(parts)
    texts = claim_texts(parts)
    clashes = minimal(solved.clashes, _ORDER)
    found = [finding(clash, texts, parts) for clash in clashes]
    found += comparisons.findings(parts.runs)
    for run in parts.runs:
        found += [*shape.findings(run), *reliability.findings(run), *hardware.findings(run), *money.findings(run)]
    found += [each for told in parts.collectives for each in collectives.findings(told)]
    found += [each for told in parts.links for each in links.findings(told)]
    found += _dates(page, parts.runs)
    # What runs share is told once.
    found = sorted(dict.fromkeys(found), key=lambda each: _GRAVITY.index(each.kind))
    return Audit(
        page=page.page,
        consistent=not any(each.kind in WRONG for each in found),
        findings=tuple(found),
        not_checked=tuple(unchecked(solved, given, texts, parts, found)),
        implied=tuple(implied(solved.known)),
        references=tuple(references(parts.runs, solved.known)),
        claims=sum(name.rpartition(".")[2] not in _NO_FIGURES for name in texts),
    )


def _solved(parts: Parts) -> tuple[Solved, Known]:
    given: Known = {}
    laws: list[Law] = [*comparisons.laws(parts.runs), *comparisons.without_base(parts.runs)]
    bounds: list[Bound] = []
    for run in parts.runs:
        given |= stated(run) | reliability.stated(run)
        laws += [law for subject in _SUBJECTS for law in subject.laws(run)]
        laws += money.savings(run)
        bounds += [*throughput.bounds(run), *money.bounds(run), *memory.bounds(run), *reliability.bounds(run)]
    for told in parts.checkpoints:
        given |= checkpoints.stated(told)
        laws += checkpoints.laws(told)
        bounds += checkpoints.bounds(told)
    known = follow(given, laws, FORM)
    known |= checkpoints.unproductive(parts.checkpoints, known)
    return compare(known, [*bounds, *comparisons.bounds(parts.runs, known)]), given


def _dates(page: PageClaims, runs: Sequence[Run]) -> list[Finding]:
    """A price of a day after the page."""
    found, of_page = [], _day(page.date)
    for run in runs:
        day = _day(run.claims.price_date)
        if of_page and day and day > of_page:
            lines = (claim_line("page.date", page.date), claim_line(run.claim("price_date"), run.claims.price_date))
            line = f"a page of {of_page} has no price of {day}"
            found.append(Finding(kind="contradiction", claims=lines, arithmetic=line))
    return list(dict.fromkeys(found))


def _day(text: str) -> date | None:
    """The first of the month, or of the year, where no more is told."""
    found = re.fullmatch(r"(\d{4})(?:-(\d{1,2}))?(?:-(\d{1,2}))?", text.strip())
    try:
        return date(int(found[1]), int(found[2] or 1), int(found[3] or 1)) if found else None
    except ValueError:
        return None
