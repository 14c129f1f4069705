"""`convoy list`: the jobs under a root, each with its state, age and cost."""

import json
import time
from collections.abc import Sequence

import click

from convoy.cli.options import JSON, Jobs, with_jobs
from convoy.display.formatting import duration, usd
from convoy.job.lineage import threads_for
from convoy.report.jobs import JobLine, job_line
from convoy.storage.thread_map import in_parallel

WIDTH = 80
"""Columns of a terminal."""

_HEADERS = ("Job", "State", "Step", "Age", "Cost")


@click.command("list")
@with_jobs
@JSON
def list_jobs(jobs: Jobs, as_json: bool) -> None:
    """List the jobs under the root, the one that started last first.

    The age of a job counts from when it was made.
    """
    stores = list(jobs.stores().items())
    lines = in_parallel(lambda i: job_line(*stores[i]), len(stores), threads_for(jobs.root))
    lines.sort(key=lambda line: line.started or 0.0, reverse=True)
    if as_json:
        click.echo(json.dumps([line.model_dump() for line in lines], indent=2))
    elif lines:
        click.echo("\n".join(table(lines, time.time())))
    else:
        click.echo(f"There are no jobs under {jobs.root}.")


def table(lines: Sequence[JobLine], now: float) -> list[str]:
    """A header and a line for each job, no wider than WIDTH. now: Unix time."""
    rows = [_HEADERS, *(_row(line, now) for line in lines)]
    others = [max(len(row[i]) for row in rows if len(row) == len(_HEADERS)) for i in range(1, len(_HEADERS))]
    others[0] = max(len(row[1]) for row in rows)
    name = min(max(len(row[0]) for row in rows), WIDTH - sum(others) - 2 * len(others))
    return [_joined(row, [name, *others]) for row in rows]


def _joined(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [_cut(row[0], widths[0]), *row[1:]]
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=False))  # a problem spans columns
    return "  ".join(padded).rstrip()[:WIDTH]


def _row(line: JobLine, now: float) -> tuple[str, ...]:
    if line.problem:
        return (line.job, line.state, line.problem)
    age = "" if line.created is None else duration(max(now - line.created, 0.0))
    cost = "—" if line.usd is None else usd(line.usd)
    steps = "" if line.steps is None else f" of {line.steps:,}"
    return (line.job, line.state, f"{line.step or 0:,}{steps}", age, cost)


def _cut(text: str, width: int) -> str:
    """A name that is too long is shortened in its middle: its end distinguishes runs of one flow."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[-(width - 1 - head) :]}"
