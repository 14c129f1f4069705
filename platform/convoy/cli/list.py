"""`convoy list`: the jobs under a root, how each stands, how old it is and what it has cost."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from convoy.cli.options import ENDPOINT, ROOT, jobs_under, root_of

if TYPE_CHECKING:
    from convoy.report.jobs import JobLine

WIDTH = 80
"""Columns of a terminal."""

_HEADERS = ("Job", "State", "Step", "Age", "Cost")


@click.command("list")
@ROOT
@ENDPOINT
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def list_jobs(root: str | None, endpoint_url: str | None, as_json: bool) -> None:
    """List the jobs under the root, the one that started last first.

    The age of a job counts from when it was made.
    """
    import json

    from convoy.job.lineage import threads_for
    from convoy.report.jobs import job_line
    from convoy.storage.thread_map import in_parallel

    where = root_of(root)
    jobs = list(jobs_under(root, endpoint_url).items())
    lines = in_parallel(lambda i: job_line(*jobs[i]), len(jobs), threads_for(where))
    lines.sort(key=lambda line: line.started or 0.0, reverse=True)
    if as_json:
        click.echo(json.dumps([line.model_dump() for line in lines], indent=2))
    elif lines:
        click.echo("\n".join(table(lines, time.time())))
    else:
        click.echo(f"There are no jobs under {where}.")


def table(lines: "Sequence[JobLine]", now: float) -> list[str]:
    """A header and a line for each job, no wider than WIDTH. now: Unix time."""
    rows = [_HEADERS, *(_row(line, now) for line in lines)]
    others = [max(len(row[i]) for row in rows if len(row) == len(_HEADERS)) for i in range(1, len(_HEADERS))]
    others[0] = max(len(row[1]) for row in rows)
    name = min(max(len(row[0]) for row in rows), WIDTH - sum(others) - 2 * len(others))
    return [_joined(row, [name, *others]) for row in rows]


def _joined(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [_cut(row[0], widths[0]), *row[1:]]
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=False))  # a problem stands across columns
    return "  ".join(padded).rstrip()[:WIDTH]


def _row(line: "JobLine", now: float) -> tuple[str, ...]:
    from convoy.display.formatting import duration

    if line.problem:
        return (line.job, line.state, line.problem)
    age = "" if line.created is None else duration(max(now - line.created, 0.0))
    cost = "—" if line.usd is None else f"{line.usd:,.2f} USD"
    steps = "" if line.steps is None else f" of {line.steps:,}"
    return (line.job, line.state, f"{line.step or 0:,}{steps}", age, cost)


def _cut(text: str, width: int) -> str:
    """A name that is too long is shortened in its middle: its end tells runs of one flow apart."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[-(width - 1 - head) :]}"
