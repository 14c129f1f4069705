"""What an audit finds, as plain data and as a page."""

from collections.abc import Sequence

from convoy.audit.solver import Kind
from convoy.config.base import FrozenConfig
from convoy.display import formatting
from convoy.display.page import Block, Callout, Heading, Page, Table, Text, Tone

FORMAT = 2
"""Raised when a key changes its meaning or goes away."""

WRONG: frozenset[Kind] = frozenset({"contradiction", "impossible"})
"""What makes a page inconsistent."""


class Finding(FrozenConfig):
    """Claims that cannot all be true, or that hardly are, with the arithmetic in a line."""

    kind: Kind
    claims: tuple[str, ...]
    """Each as `runs.fast.throughput = 145,267 tokens/s`."""
    arithmetic: str
    given: tuple[str, ...] = ()
    """Facts of the catalog that it rests on."""


class Implied(FrozenConfig):
    """What the page does not say, and what it says implies."""

    quantity: str
    value: str
    arithmetic: str


class Audit(FrozenConfig):
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
    claims: int = 0
    """That the page makes."""


def claim_line(name: str, text: str) -> str:
    return f"{name} = {text}"


def audit_page(audit: Audit) -> Page:
    """The findings, what the page implies, and what could not be checked."""
    title = f"Audit of {audit.page}" if audit.page else "Audit"
    parts: list[Block] = [Heading(title, level=1), Text(_summary(audit)), *map(_finding_callout, audit.findings)]
    if audit.implied:
        rows = tuple((each.quantity, each.value, each.arithmetic) for each in audit.implied)
        parts += [Heading("What the claims imply"), Table(("Quantity", "Value", "Arithmetic"), rows)]
    if audit.not_checked:
        why = tuple((", ".join(each.claims), each.arithmetic) for each in audit.not_checked)
        parts += [Heading("Not checked"), Table(("Claim", "Why"), why)]
    return Page(title, tuple(parts))


def _summary(audit: Audit) -> str:
    """The result in a sentence."""
    claims = formatting.plural(audit.claims, "claim")
    wrong = [each for each in audit.findings if each.kind in WRONG]
    if wrong:
        return f"{claims}, of which some cannot be true: {formatting.plural(len(wrong), 'finding')}."
    unlikely = f"; {formatting.plural(len(audit.findings), 'thing')} unlikely" if audit.findings else ""
    return f"{claims}, which agree with each other and with the hardware's limits{unlikely}."


def _finding_callout(finding: Finding) -> Callout:
    tone: Tone = "warning" if finding.kind == "unlikely" else "bad"
    lines = [finding.arithmetic, f"Claims: {'; '.join(finding.claims)}."]
    if finding.given:
        lines.append(f"Catalog: {'; '.join(finding.given)}.")
    return Callout(finding.kind.capitalize(), "\n".join(lines), tone)


def findings_table(findings: Sequence[Finding]) -> Table:
    """For a page that has much else."""
    rows = tuple((each.kind.capitalize(), each.arithmetic) for each in findings)
    return Table(("", "Arithmetic"), rows)
