"""The page of a job whose workers run a user's own script: what the agents saw, and what the script reported."""

from convoy.display.page import Heading, Page, Text, Value, Values
from convoy.report.analysis.outcome import state_word
from convoy.report.pages import incident_sections, sections
from convoy.report.train_report import TrainReport


def script_page(report: TrainReport, name: str) -> Page:
    """The page while the script runs, and when it has ended. name: of the script."""
    facts = [state_word(report).capitalize(), *sections.gang(report), incident_sections.deaf_nodes(report)]
    return Page(
        name,
        (
            Heading(name, level=1),
            Text(" · ".join(filter(None, facts)), quiet=True),
            *sections.verdict(report, of_script=True),
            Values((_step(report), _generations(report))),
            *incident_sections.incidents(report),
            *sections.events(report),
        ),
    )


def _step(report: TrainReport) -> Value:
    if not report.step:
        return Value("Step", "—", "the script has reported none")
    return Value("Step", f"{report.step:,}", "the last one that the script reported")


def _generations(report: TrainReport) -> Value:
    count = len(report.generations)
    return Value("Generations", f"{count:,}", "never restarted" if count < 2 else f"restarted {count - 1:,} times")
