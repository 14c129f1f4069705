"""`convoy logs JOB --rank 3`: what a rank printed, wherever it ran."""

import sys
from collections.abc import Sequence

import click

from convoy.cli.options import Jobs, with_jobs
from convoy.config.errors import ConfigError
from convoy.display.formatting import size
from convoy.job.rank_logs import RankLog, available_logs, chosen, start_of_last_lines
from convoy.job.rank_logs import follow as follow_log


@click.command()
@click.argument("job", required=False)
@click.option("--rank", type=click.IntRange(min=0), default=None, help="Default: list the available logs.")
@click.option("--generation", type=click.IntRange(min=1), default=None, help="Default: the rank's newest.")
@click.option("--lines", type=click.IntRange(min=0), default=None, help="Print only the last lines.")
@click.option("--follow", is_flag=True, help="Follow, through restarts, until no run is active.")
@with_jobs
def logs(
    jobs: Jobs, job: str | None, rank: int | None, generation: int | None, lines: int | None, follow: bool
) -> None:
    """Print what a rank of JOB printed in one generation of the gang: from one start, or restart, to the next.

    Without JOB, of the job that started last.

    With a root on S3 what a rank prints is there within half a minute.
    """
    store = jobs.store(jobs.named_or_newest(job))
    available = available_logs(store)
    if rank is None:
        if follow or lines is not None:
            raise ConfigError("--rank: required with --follow and --lines")
        _print_list([log for log in available if generation in (None, log.generation)])
        return
    log = chosen(available, rank, generation)
    start = 0 if lines is None else start_of_last_lines(store, log, lines)
    out, current = sys.stdout.buffer, log
    for of, data in follow_log(store, log, start, on=follow):
        if of != current:
            click.echo(f"convoy: rank {rank}, generation {of.generation}", err=True)
            current = of
        out.write(data)
        out.flush()


def _print_list(logs: Sequence[RankLog]) -> None:
    if not logs:
        click.echo("no logs yet")
        return
    click.echo("generation  node  rank  size")
    for log in logs:
        click.echo(f"{log.generation:>10}  {log.node:>4}  {log.rank:>4}  {size(log.bytes)}")
