"""What an audit finds, as plain data."""

from convoy.audit.solver import Kind
from convoy.catalog.references import Reference
from convoy.config.base import Frozen

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
    """A published run beside one of the page."""

    run: str


class Audit(Frozen):
    """All that was found."""

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
