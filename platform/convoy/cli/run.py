"""`convoy run` and `convoy drain`; and what comes before a first run, `convoy init` and `convoy doctor`."""

import socket
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from convoy.cli.options import ROOT, Jobs, with_jobs
from convoy.config.errors import ConfigError
from convoy.config.loader import shipped_folder
from convoy.doctor.report import run_doctor
from convoy.gang.notices.sources import DrainRequest, request_drain
from convoy.job.heartbeat import live_mark
from convoy.job.record import check_name
from convoy.launch.checks.host import put_python_on_path, set_user_name
from convoy.launch.parse import job_words, option_word_counts, words_around_run
from convoy.launch.reruns.driver import RunRequest, run_until_done
from convoy.launch.reruns.policy import RerunLimits

WRITTEN = (
    ("flows", "train_flow.py"),
    ("flows", "benchmark_flow.py"),
    ("configs", "train/default.yaml"),
    ("configs", "bench/default.yaml"),
)
"""Laid out as the repository is: each flow reads its default configuration from the folder next to its own."""


@click.command("run")
@click.argument("flow", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.option("--job", required=True, help="Start or resume this job.")
@ROOT
@click.option("--pause", type=click.FloatRange(min=0), default=10.0, show_default=True, metavar="SECONDS",
              help="Pause before the flow is started again; doubled while the job makes no progress.")  # fmt: skip
@click.option("--longest-pause", type=click.FloatRange(min=0), default=600.0, show_default=True, metavar="SECONDS")
@click.option("--start-minutes", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True,
              help="A gang whose first node is not running after this time is stopped and started again.")  # fmt: skip
@click.option("--most-runs", type=click.IntRange(min=1), default=None, help="Default: no limit.")
def run(
    flow: Path,
    words: tuple[str, ...],
    job: str,
    root: str | None,
    pause: float,
    longest_pause: float,
    start_minutes: float,
    most_runs: int | None,
) -> None:
    """Run FLOW until its job is done, however often its machines are reclaimed.

    After `--` come the words that `python FLOW` would get, with or without the command run: convoy run
    flows/train_flow.py --job blue -- --config-value set train.steps=5000. A preempted run, a lost machine and an
    outage are followed by another run, after a pause; a failure that comes three times at the same step is not, and
    nor is a run that `convoy drain` ended. --root is needed where the flow's artifact `config` does not name the root.

    The first SIGINT or SIGTERM has the run save and end. Exit codes: 0, the job is done; 1, it failed; 2, bad input; 3,
    it was stopped or drained; 128 and more, a signal.
    """
    check_name(job)
    if named := job_words(words):
        raise ConfigError(f"{named[0]}: the job is named by convoy run --job {job}, before the --")
    set_user_name()
    put_python_on_path()
    before, after = words_around_run(words, option_word_counts())
    limits = RerunLimits(pause, max(pause, longest_pause), most_runs)
    sys.exit(run_until_done(RunRequest(flow, job, before, after, root, start_minutes * 60, limits)))


@click.command()
@click.argument("job")
@with_jobs
@click.option("--now", is_flag=True, help="End on the last checkpoint, without another save.")
def drain(jobs: Jobs, job: str, now: bool) -> None:
    """Have the run of JOB save and end, as if its machines were reclaimed; the job's next run resumes from there.

    Returns as soon as the request is written. Exit code 2 if none is running.
    """
    store = jobs.store(job)
    mark = live_mark(store)
    if mark is None:
        raise ConfigError(f"job = {job}: no run is running it now")
    request_drain(store, DrainRequest(run=mark.run, now=now, host=socket.gethostname(), requested=time.time()))
    how = "end on its last checkpoint" if now else "save and end"
    click.echo(f"run {mark.run} of job {job} was asked to {how}")


@click.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path), default=Path())
def init(folder: Path) -> None:
    """Write both flows and their default configurations below DIR, to edit. Overwrites nothing.

    Other presets need no file of yours: `--config run NAME` takes them by name.
    """
    texts = {folder / kind / name: (shipped_folder(kind) / name).read_text() for kind, name in WRITTEN}
    if there := [path for path in texts if path.exists()]:
        raise ConfigError(f"init: {', '.join(map(str, there))}: already there; nothing was written")
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise ConfigError(f"init: {path}: cannot be written: {error.strerror}") from None
        click.echo(path)
    click.echo(f"To train: python {folder / 'flows' / 'train_flow.py'} run")


@click.command()
@click.option("--peer", default=None, metavar="HOST", help="Also examine the way to this host: its delay and MTU.")
def doctor(peer: str | None) -> None:
    """Report what this machine can do and what is wrong; exit code 1 if something is.

    Below what is not as it should be stands what is wanted, why, and a line for the shell that fixes it.
    """
    sys.exit(run_doctor(Console(), peer))
