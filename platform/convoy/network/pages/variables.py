"""The page of `convoy net env`: problems of the environment variables of the network stack."""

from collections.abc import Sequence
from datetime import date

from convoy.display.page import Block, Code, Column, Heading, Page, Table, Text, columns
from convoy.network.variables import SOFTWARE, EnvironmentReport, Stack, VariableFinding

_TITLE = "Variables of the network stack"


def variables_page(report: EnvironmentReport) -> Page:
    """Certain findings with the commands that fix them, then those that depend on unknown facts, and all sources."""
    certain = [finding for finding in report.findings if not finding.depends_on]
    dependent = [finding for finding in report.findings if finding.depends_on]
    sources = list(dict.fromkeys((finding.source, finding.date) for finding in [*certain, *dependent]))
    blocks: list[Block] = [Heading(_TITLE, level=1), Text(_describe(report.stack), quiet=True)]
    if certain:
        blocks += [_table(certain, sources), Text("To fix it:"), Code("\n".join(finding.fix for finding in certain))]
    else:
        blocks.append(Text("Nothing is known to be harmful, missing or obsolete."))
    if dependent:
        blocks += [
            Heading("Depends on what was not given"),
            Text(_missing_options(report.stack), quiet=True),
            _table(dependent, sources),
        ]
    blocks += [Text(f"[{i}] {source}, read on {day}", quiet=True) for i, (source, day) in enumerate(sources, 1)]
    return Page(_TITLE, tuple(blocks))


def _describe(stack: Stack) -> str:
    known = [f"{name} {stack.version(software)}" for software, name in SOFTWARE.items() if stack.version(software)]
    known += [stack.instance] if stack.instance else []
    return f"Checked for {', '.join(known)}." if known else "No version and no machine was given."


def _missing_options(stack: Stack) -> str:
    missing = [f"--{name}" for name in ("nccl", "ofi", "libfabric", "instance") if getattr(stack, name) is None]
    return f"To decide these, give {', '.join(missing)}."


def _table(findings: Sequence[VariableFinding], sources: list[tuple[str, date]]) -> Table:
    return columns(
        findings,
        Column("", lambda finding: finding.severity),
        Column("variable", lambda finding: finding.variable),
        Column("value", lambda finding: finding.value),
        Column("why", lambda finding: f"{_reason(finding)} [{sources.index((finding.source, finding.date)) + 1}]"),
        drop_empty=True,
    )


def _reason(finding: VariableFinding) -> str:
    return f"If {' and '.join(finding.depends_on)}: {finding.reason}" if finding.depends_on else finding.reason
