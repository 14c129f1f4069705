"""The page of a job whose workers run a user's own script: what the agents saw, and what the script told."""

from convoy.display import formatting
from convoy.display.page import Block, Callout, Code, Heading, Page, Text, Value, Values
from convoy.job.events.causes import in_words
from convoy.report.analysis.outcome import state_word
from convoy.report.pages import incident_sections, sections
from convoy.report.train_report import TrainReport


def script_page(report: TrainReport, name: str) -> Page:
    """While it runs, and when it has ended. name: of the script."""
    return Page(
        name,
        (
            Heading(name, level=1),
            Text(" · ".join(_facts(report)), quiet=True),
            *_verdict(report),
            Values((_step(report), _generations(report))),
            *incident_sections.incidents(report),
            *sections.events(report),
        ),
    )


def _facts(report: TrainReport) -> list[str]:
    facts = [state_word(report).capitalize()]
    if report.generations:
        newest = report.generations[-1]
        facts.append(f"{formatting.plural(newest.world_size, 'rank')} on {formatting.plural(newest.nodes, 'node')}")
        facts.append(f"generation {newest.number}")
        facts.append(newest.run)
    return [*facts, *filter(None, [incident_sections.deaf_nodes(report)])]


def _verdict(report: TrainReport) -> tuple[Block, ...]:
    outcome = report.outcome
    if outcome.state in ("preempted", "lost"):
        return (Callout(state_word(report).capitalize(), outcome.reason, "warning"),)
    if outcome.state == "running" and outcome.notice:
        return (Callout("Ending", sections.ending(report), "warning"),)
    if outcome.state == "running" and outcome.cause is not None:
        return (Callout("Restarting in place", in_words(outcome.cause), "warning"),)
    if outcome.state != "failed":
        return ()
    if outcome.cause is None:
        return (Callout("Failed", "No worker's end was seen, so the first cause is not known."),)
    tail = outcome.cause.log_tail
    lines: tuple[Block, ...] = (Text("Its last lines", quiet=True), Code(tail)) if tail else ()
    return (Callout("Failed", in_words(outcome.cause)), *lines)


def _step(report: TrainReport) -> Value:
    if not report.step:
        return Value("Step", "—", "the script has reported none")
    return Value("Step", f"{report.step:,}", "the last one that the script reported")


def _generations(report: TrainReport) -> Value:
    count = len(report.generations)
    return Value("Generations", f"{count:,}", "never restarted" if count < 2 else f"restarted {count - 1:,} times")
