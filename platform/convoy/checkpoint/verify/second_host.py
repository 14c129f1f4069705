"""Two hosts must find damage, where a gang has two: one with bad memory, a bad network card or a bad disk cache finds
damage wherever it reads, and would take the whole job back, commit by commit.

Pure functions: which rank reads again what another has found, and the line about a host that was wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Damage that a rank found in two reads."""

    rank: int
    part: int | None
    """The writer of the damaged part; None: the commit itself, or it is not known."""
    error: str


@dataclass(frozen=True)
class Question:
    """A finding, and the rank of another host that is to read the same."""

    finding: Finding
    witness: int


def confirmed_finding(findings: Sequence[Finding], hosts: Sequence[str]) -> Question | None:
    """A finding that another host has made as well, of the same part, with its rank; hosts: of each rank."""
    for finding in findings:
        for other in findings:
            if other.part == finding.part and hosts[other.rank] != hosts[finding.rank]:
                return Question(finding, other.rank)
    return None


def questions(findings: Sequence[Finding], hosts: Sequence[str]) -> list[Question]:
    """The first finding of each host, which shows whether to trust the host. Empty where there is only one host."""
    first = {hosts[finding.rank]: finding for finding in reversed(findings)}
    witnesses = {name: next((r for r, other in enumerate(hosts) if other != name), None) for name in first}
    pairs = ((finding, witnesses[name]) for name, finding in first.items())
    return [Question(finding, witness) for finding, witness in pairs if witness is not None]


def reader_of(part: int, suspected_by: str, hosts: Sequence[str]) -> int | None:
    """The rank that reads a part again which a host suspects: the part's own writer, or the next one elsewhere. None:
    all ranks are on that host."""
    order = ((part + step) % len(hosts) for step in range(len(hosts)))
    return next((rank for rank in order if hosts[rank] != suspected_by), None)


def misread(host: str, other: str, what: str, error: str) -> str:
    """One line about a host that found damage where another finds none."""
    return (
        f"{host} reads {what} otherwise than {other}, which finds it whole: memory, network or a disk cache of {host} "
        f"is at fault ({error})"
    )


def named(part: int | None, commit: str) -> str:
    """The object that was read, for people."""
    return commit if part is None else f"part {part} of {commit}"
