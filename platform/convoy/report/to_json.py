"""The report for machines."""

import json
from typing import Any

from convoy.display.charts import MAX_POINTS
from convoy.report.train_report import TrainReport

FORMAT = 1
"""Raised when a key changes its meaning or goes away; new keys may come without it."""


def to_json(report: TrainReport) -> dict[str, Any]:
    """The report as plain JSON data: the fields of `TrainReport` under their names, and `format`.

    Durations are in seconds, times in Unix seconds, sizes in bytes, losses in nats per token; what is not known is
    null and a number that is not finite is one of the strings `NaN`, `Infinity`, `-Infinity`. `steps` holds at most
    about MAX_POINTS evenly spaced steps besides the last; every step is in the event log.
    """
    stride = max(1, -(-len(report.steps) // MAX_POINTS))
    thinned = report.steps[::stride]
    if thinned and thinned[-1] is not report.steps[-1]:
        thinned = (*thinned, report.steps[-1])
    # Only pydantic's own JSON writes non-finite numbers as strings; `model_dump` leaves them as they are.
    text = report.model_copy(update={"steps": thinned}).model_dump_json()
    return {"format": FORMAT, **json.loads(text)}
