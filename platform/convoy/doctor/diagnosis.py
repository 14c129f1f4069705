"""What the doctor finds, and how it is printed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.markup import escape

Level = Literal["ok", "note", "warning", "problem"]
STYLES: dict[Level, str] = {"ok": "green", "note": "dim", "warning": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was looked at. A note is about something optional, a problem keeps jobs from running."""

    name: str
    level: Level
    observed: str
    fix: str = ""
    wanted: str = ""
    """What should be there instead."""
    why: str = ""
    """A sentence on what it is good for."""


def print_findings(console: Console, findings: Sequence[Diagnosis]) -> None:
    """A line for each; below it what is wanted and why, and the fix on a line of its own that is never wrapped, so that
    it can be pasted into a shell."""
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        style = STYLES[finding.level]
        console.print(
            f"[{style}]{finding.level:<8}[/{style}] {escape(finding.name):<{width}}  {escape(finding.observed)}",
            soft_wrap=True, highlight=False,
        )  # fmt: skip
        indent = " " * (len("problem  ") + width + 2)
        if finding.wanted:
            wanted = f"{indent}wanted: {finding.wanted}. {finding.why}".rstrip()
            console.print(escape(wanted), soft_wrap=True, highlight=False)
        if finding.fix:
            console.print(f"{indent}[italic]{escape(finding.fix)}[/italic]", soft_wrap=True, highlight=False)
