"""What the doctor finds, and how it is printed."""

from dataclasses import dataclass
from typing import Literal

from rich.markup import escape
from rich.table import Table

Level = Literal["ok", "note", "warning", "problem"]
STYLES: dict[Level, str] = {"ok": "green", "note": "dim", "warning": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was looked at. A note is about something optional, a problem keeps jobs from running."""

    name: str
    level: Level
    observed: str
    fix: str = ""


def as_table(findings: list[Diagnosis]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        advice = f"\n[italic]{escape(finding.fix)}[/italic]" if finding.fix else ""
        style = STYLES[finding.level]
        table.add_row(f"[{style}]{finding.level}[/{style}]", finding.name, f"{escape(finding.observed)}{advice}")
    return table
