"""What an audit finds, as plain data and as a page."""

from collections.abc import Sequence

from convoy.audit.solver import Kind
from convoy.catalog.references import Reference
from convoy.config.base import Frozen
from convoy.display import formatting
from convoy.display.page import Block, Callout, Heading, Page, Table, Text, Tone

FORMAT = 1
"""Raised when a key changes its meaning or goes away."""

WRONG: frozenset[Kind] = frozenset({"contradiction", "impossible"})
"""What makes a page inconsistent."""


class Finding(Frozen):
    """Claims that cannot all be true, or that hardly are, with the arithmetic in a line."""

    kind: Kind
    claims: tuple[str, ...]
    """Each as `runs.fast.throughput = 145,267 tokens/s`."""
    arithmetic: str
    hint: str = ""
    """What would explain it, such as bits that were taken for bytes."""
    given: tuple[str, ...] = ()
    """Facts of the catalog that it rests on."""


class Implied(Frozen):
    """What the page does not say, and what it says implies."""

    quantity: str
    value: str
    arithmetic: str


class Near(Reference):
    """A published run near one of the page."""

    run: str


class Audit(Frozen):
    """The result of an audit."""

    format: int = FORMAT
    page: str = ""
    consistent: bool
    """No contradiction, and nothing impossible."""
    findings: tuple[Finding, ...]
    """The gravest first."""
    not_checked: tuple[Finding, ...] = ()
    """Claims that nothing else says anything of."""
    implied: tuple[Implied, ...] = ()
    references: tuple[Near, ...] = ()
    """Published runs of models of about the size on such GPUs."""
    claims: int = 0
    """That the page makes."""


def claim_line(name: str, text: str) -> str:
    return f"{name} = {text}"


def audit_page(audit: Audit) -> Page:
    """The findings, what the page implies, and what could not be checked."""
    title = f"Audit of {audit.page}" if audit.page else "Audit"
    return Page(title, (Heading(title, level=1), Text(summary(audit)), *blocks(audit)))


def summary(audit: Audit) -> str:
    """The result in a sentence."""
    claims = formatting.plural(audit.claims, "claim")
    wrong = [each for each in audit.findings if each.kind in WRONG]
    if wrong:
        return f"{claims}, of which some cannot be true: {formatting.plural(len(wrong), 'finding')}."
    unlikely = f"; {formatting.plural(len(audit.findings), 'thing')} unlikely" if audit.findings else ""
    return f"{claims}, which agree with each other and with the hardware's limits{unlikely}."


def blocks(audit: Audit) -> tuple[Block, ...]:
    parts: list[Block] = [_finding(each) for each in audit.findings]
    if audit.implied:
        parts.append(Heading("What the claims imply"))
        rows = tuple((each.quantity, each.value, each.arithmetic) for each in audit.implied)
        parts.append(Table(("Quantity", "Value", "Arithmetic"), rows))
    if audit.references:
        parts.append(Heading("Published measurements near by"))
        parts.append(_references(audit))
    if audit.not_checked:
        parts.append(Heading("Not checked"))
        why = tuple((", ".join(each.claims), each.arithmetic) for each in audit.not_checked)
        parts.append(Table(("Claim", "Why"), why))
    return tuple(parts)


def _finding(each: Finding) -> Callout:
    tone: Tone = "warning" if each.kind == "unlikely" else "bad"
    lines = [each.arithmetic, *([f"Perhaps {each.hint}"] if each.hint else [])]
    lines.append(f"Claims: {'; '.join(each.claims)}.")
    if each.given:
        lines.append(f"Catalog: {'; '.join(each.given)}.")
    return Callout(each.kind.capitalize(), "\n".join(lines), tone)


def _references(audit: Audit) -> Table:
    headers = ("Run", "Published", "GPUs", "tokens/s/GPU", "MFU", "Of")
    rows = tuple(
        (each.run, each.model, f"{each.gpus} × {each.gpu}", f"{each.tokens_per_second_per_gpu:,.0f}",
         formatting.percent(each.mfu), f"{each.date}, {each.source}")
        for each in audit.references
    )  # fmt: skip
    return Table(headers, rows)


def findings_table(findings: Sequence[Finding]) -> Table:
    """For a page that has much else."""
    rows = tuple((each.kind.capitalize(), each.arithmetic, each.hint) for each in findings)
    return Table(("", "Arithmetic", "Perhaps"), rows)
