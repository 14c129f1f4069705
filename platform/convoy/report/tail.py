"""A job's log as lines, as it grows."""

import time
from collections.abc import Iterator

from convoy.config.errors import printable
from convoy.display import formatting
from convoy.job.events.log import EventReader
from convoy.job.events.registry import Event, FailureDetected, GenerationEnded, GenerationStarted, ModelBuilt, StepDone
from convoy.job.heartbeat import live_mark
from convoy.report.analysis.timeline import timeline
from convoy.report.train_report import TrainReport
from convoy.storage import Store

POLL_SECONDS = 1.0


def tail_lines(store: Store, follow: bool, poll_seconds: float = POLL_SECONDS) -> Iterator[str]:
    """Lines for what the log holds and then, with `follow`, for what comes.

    It ends when the newest generation has ended, or when no run is working on the job, as after the loss of its host.
    """
    reader, ended, restarts, unit = EventReader(store), False, False, "tokens"
    while True:
        # Checked first, so that the last events of a run that ends now are printed.
        running = follow and live_mark(store) is not None
        events = reader.poll()
        unit = next((event.unit for event in reversed(events) if isinstance(event, ModelBuilt)), unit)
        yield from event_lines(events, unit)
        for event in events:
            if event.node == 0 and event.rank is None:
                ended = isinstance(event, GenerationEnded) and not restarts
                match event:
                    case FailureDetected():
                        restarts = event.action == "restart"
                    case GenerationStarted():
                        restarts = False
        if ended or not follow:
            return
        if not running:
            yield "no run is working on this job now"
            return
        time.sleep(poll_seconds)


def event_lines(events: list[Event], unit: str = "tokens") -> list[str]:
    """One line per step and per moment that a person wants to read, by time. unit: what steps count."""
    steps = [(e.t, _step_line(e, unit)) for e in events if isinstance(e, StepDone)]
    moments = [(m.t, m.text) for m in timeline(events)]
    clock = [(time.strftime("%H:%M:%S", time.localtime(t)), text) for t, text in sorted(steps + moments)]
    return [f"{at}  {printable(text)}" for at, text in clock]


def _step_line(e: StepDone, unit: str) -> str:
    rate = formatting.significant(e.tokens / e.seconds) if e.seconds else "?"
    note = "  skipped: not finite" if e.skipped else ""
    name = formatting.unit_name(unit)
    return f"step {e.step:,}  loss {formatting.significant(e.loss)}  {rate} {name}/s  lr {e.lr:.3g}{note}"


def progress_line(report: TrainReport) -> str:
    """A job's progress in one line."""
    of = "" if report.target_steps is None else f" of {report.target_steps:,}"
    parts = [f"step {report.step:,}{of}"]
    if report.steps:
        parts.append(f"loss {formatting.significant(report.steps[-1].loss)}")
    if report.tokens_per_second is not None:
        parts.append(formatting.rate(report.tokens_per_second.median, report.unit))
    if report.eta_seconds and report.pace_steps >= report.warmup_steps:
        parts.append(f"{formatting.duration(report.eta_seconds)} left")
    return ", ".join(parts) if report.step else "starting"
