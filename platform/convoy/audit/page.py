"""What an audit found, as a page."""

from collections.abc import Sequence

from convoy.audit.findings import Audit, Finding
from convoy.display import formatting
from convoy.display.page import Block, Callout, Heading, Page, Table, Text, Tone

_TITLES = {
    "contradiction": "Contradiction",
    "impossible": "Impossible",
    "unlikely": "Unlikely",
    "cannot be checked": "Cannot be checked",
}


def audit_page(found: Audit) -> Page:
    """The findings, what the page implies, and what could not be checked."""
    title = f"Audit of {found.page}" if found.page else "Audit"
    return Page(title, (Heading(title, level=1), Text(told(found)), *blocks(found)))


def told(found: Audit) -> str:
    """In a sentence."""
    claims = formatting.plural(found.claims, "claim")
    wrong = [each for each in found.findings if each.kind in ("contradiction", "impossible")]
    if wrong:
        return f"{claims}, of which some cannot be true: {formatting.plural(len(wrong), 'finding')}."
    unlikely = f"; {formatting.plural(len(found.findings), 'thing')} unlikely" if found.findings else ""
    return f"{claims}, which agree with each other and with the hardware's limits{unlikely}."


def blocks(found: Audit) -> tuple[Block, ...]:
    parts: list[Block] = [_finding(each) for each in found.findings]
    if found.implied:
        parts.append(Heading("What the claims imply"))
        rows = tuple((each.quantity, each.value, each.arithmetic) for each in found.implied)
        parts.append(Table(("Quantity", "Value", "Arithmetic"), rows))
    if found.references:
        parts.append(Heading("Published measurements near by"))
        parts.append(_references(found))
    if found.not_checked:
        parts.append(Heading("Not checked"))
        why = tuple((", ".join(each.claims), each.arithmetic) for each in found.not_checked)
        parts.append(Table(("Claim", "Why"), why))
    return tuple(parts)


def _finding(each: Finding) -> Callout:
    tone: Tone = "warning" if each.kind == "unlikely" else "bad"
    lines = [each.arithmetic, *([f"Perhaps {each.hint}"] if each.hint else [])]
    lines.append(f"Claims: {'; '.join(each.claims)}.")
    if each.given:
        lines.append(f"Catalog: {'; '.join(each.given)}.")
    return Callout(_TITLES[each.kind], "\n".join(lines), tone)


def _references(found: Audit) -> Table:
    headers = ("Run", "Published", "GPUs", "tokens/s/GPU", "MFU", "Of")
    rows = tuple(
        (each.run, each.model, f"{each.gpus} × {each.gpu}", f"{each.tokens_per_second_per_gpu:,.0f}",
         formatting.percent(each.mfu), f"{each.date}, {each.source}")
        for each in found.references
    )  # fmt: skip
    return Table(headers, rows)


def findings_table(findings: Sequence[Finding]) -> Table:
    """For a page that has much else."""
    rows = tuple((_TITLES[each.kind], each.arithmetic, each.hint) for each in findings)
    return Table(("", "Arithmetic", "Perhaps"), rows)
