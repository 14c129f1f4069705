"""The text of a notification. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from convoy.config.errors import printable
from convoy.config.notify import Moment
from convoy.display.formatting import duration, usd
from convoy.report.train_report import TrainReport

_HAPPENED: dict[Moment, str] = {
    "started": "has started",
    "preempted": "is being preempted",
    "failed": "has failed",
    "resumed": "has resumed",
    "finished": "is finished",
    "regressed": "is slower than before",
    "budget": "has used up its budget",
    "stalled": "has stalled",
}


@dataclass(frozen=True)
class Message:
    """As a target gets it."""

    title: str
    body: str


@dataclass(frozen=True)
class Commands:
    """What a person types next."""

    go_on: str
    """Continues the job."""
    card: str = ""
    """URL of the card, or the command that shows it."""


def message_for(moment: Moment, job: str, cause: str, report: TrainReport, commands: Commands) -> Message:
    """report: of the job as it was then, or a little later."""
    of = "" if report.target_steps is None else f" of {report.target_steps:,}"
    lines = [
        ("First cause", printable(" ".join(cause.split()))),
        ("Step", f"{report.step:,}{of}"),
        ("Cost so far", cost_line(report)),
        ("Continue", commands.go_on),
        ("Card", commands.card),
    ]
    return Message(title_of(moment, job), lines_of(lines))


def title_of(moment: Moment, job: str) -> str:
    """In one line. job: its name, or that of a benchmark's results."""
    return f"Convoy: {job} {_HAPPENED[moment]}"


def lines_of(facts: Sequence[tuple[str, str]]) -> str:
    """A line for each fact that has a text."""
    return "\n".join(f"{name}: {text}" for name, text in facts if text)


def cost_line(report: TrainReport) -> str:
    """US dollars where every machine has a price, else how long the gang has run."""
    if report.cost is not None and report.cost.total is not None:
        return usd(report.cost.total)
    return f"{duration(report.wall_seconds)} of the gang; no price is known"
