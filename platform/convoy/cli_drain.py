"""`convoy drain JOB`: have the run of a job end soon, wherever it runs."""

import click

from convoy.cli_places import ENDPOINT, ROOT, known_job


@click.command()
@click.argument("job")
@ROOT
@ENDPOINT
@click.option("--now", is_flag=True, help="End on the last checkpoint, without another save.")
def drain(job: str, root: str | None, endpoint_url: str | None, now: bool) -> None:
    """Have the run of JOB save and end, as if its machines were taken away; the job's next run goes on from there.

    Returns as soon as the run is told. Exit code 2 if none is running.
    """
    import socket
    import time

    from convoy.config.errors import ConfigError
    from convoy.gang.notices.drain import Drain, request_drain
    from convoy.job.live import is_live, read_mark

    store = known_job(root, job, endpoint_url)
    mark = read_mark(store)
    if mark is None or not is_live(mark, time.time()):
        raise ConfigError(f"job = {job}: no run is running it now")
    request_drain(store, Drain(run=mark.run, now=now, host=socket.gethostname(), requested=time.time()))
    how = "end on its last checkpoint" if now else "save and end"
    click.echo(f"run {mark.run} of job {job} was told to {how}")
