"""Commands on jobs: `convoy list`, `show`, `tail`, `logs`, `export`, `rewind` and `replay`."""

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
from pydantic import ValidationError
from rich.console import Console

from convoy.cli.main import CommandFailed
from convoy.cli.options import JSON, Jobs, with_endpoint, with_jobs
from convoy.config.errors import ConfigError, first_problem_line
from convoy.config.run import RunConfig
from convoy.config.trackers import TrackerConfig
from convoy.display.formatting import duration, size, usd
from convoy.display.page import Column, Page, columns
from convoy.display.terminal import show as show_page
from convoy.job.events.registry import Event, GenerationStarted
from convoy.job.generations import GenerationLostError
from convoy.job.generations import rewind as rewind_job
from convoy.job.heartbeat import check_not_live, read_heartbeat
from convoy.job.lineage import reader_threads
from convoy.job.rank_logs import RankLog, available_logs, choose_log, start_of_last_lines
from convoy.job.rank_logs import stream as follow_rank
from convoy.job.record import SCRIPT_DATA, read_record, target_steps, tier_stores
from convoy.launch.plans import read_plan
from convoy.report.fold import fold
from convoy.report.jobs import JobLine, job_line
from convoy.report.pages.train import final_page, script_page
from convoy.report.tail import tail_lines as follow_log
from convoy.report.trackers.sender import replay as send_log
from convoy.report.trackers.tracker import TrackedRun, tracker_for, tracker_key
from convoy.report.train_report import to_json
from convoy.storage import Store
from convoy.storage.thread_map import in_parallel


@click.command()
@click.argument("job", required=False)
@with_jobs
@JSON
def show(jobs: Jobs, job: str | None, as_json: bool) -> None:
    """Summarise JOB from its event log.

    Without JOB, the job that started last.
    """
    job = jobs.named_or_newest(job)
    beat = read_heartbeat(jobs.store(job), time.time())  # first: a run that ends now is in the log then
    store, events, config = jobs.read(job)
    report = fold(events, target_steps(store, config), beat)
    if as_json:
        click.echo(json.dumps(to_json(report), indent=2, allow_nan=False))
        return
    record = read_record(store)
    if record is not None and record.fingerprint == SCRIPT_DATA:
        show_page(script_page(report, record.model), Console())
    else:
        show_page(final_page(report, config, {"Job": store.uri}, read_plan(store)), Console())


@click.command()
@click.argument("job", required=False)
@with_jobs
@click.option("--follow/--no-follow", default=True, help="Keep printing until the job ends.")
def tail(jobs: Jobs, job: str | None, follow: bool) -> None:
    """Print JOB's steps and events as they come.

    Without JOB, those of the job that started last.
    """
    for line in follow_log(jobs.store(jobs.named_or_newest(job)), follow):
        click.echo(line)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[JOB] FOLDER")
@with_jobs
@click.option("--to", "kind", type=click.Choice(["hf"]), required=True, help="Hugging Face folder of safetensors.")
@click.option("--step", type=int, default=None, help="Export the newest commit that counts at or below this step.")
def export(jobs: Jobs, words: tuple[str, ...], kind: str, step: int | None) -> None:
    """Write JOB's weights to FOLDER in a form that other software loads.

    Without JOB, those of the job that started last.
    """
    job, folder = _job_and_folder(jobs, words)
    _, _, config = jobs.read(job)  # before torch is imported: a wrong name is reported at once
    from convoy.checkpoint.format import DamagedCommitError
    from convoy.data.manifest import DataDamaged
    from convoy.training.export import export_to_folder

    try:
        ref = export_to_folder(jobs.root, job, with_endpoint(config, jobs.endpoint_url), Path(folder), step)
    except (DamagedCommitError, DataDamaged) as error:
        raise CommandFailed(str(error)) from None
    click.echo(f"step {ref.step} of generation {ref.generation} is in {folder} ({kind})")


def _job_and_folder(jobs: Jobs, words: tuple[str, ...]) -> tuple[str, str]:
    if len(words) > 2:
        raise ConfigError(f"export: takes JOB and FOLDER, not {len(words)} words: {' '.join(words)}")
    if len(words) == 1 and words[0] in jobs.stores():
        raise ConfigError(f"FOLDER: missing after the name of a job, {words[0]}")
    folder = words[-1]
    if Path(folder).is_file():
        raise ConfigError(f"FOLDER = {folder}: is a file")
    return jobs.named_or_newest(words[0] if len(words) == 2 else None), folder


@click.command()
@click.argument("job")
@with_jobs
@click.option("--to", "to_step", type=int, required=True, help="Resume from the newest commit at or below this step.")
def rewind(jobs: Jobs, job: str, to_step: int) -> None:
    """Make JOB resume from an earlier checkpoint; later ones are never read again, and are pruned in time."""
    store, _, config = jobs.read(job)
    check_not_live(store, job)
    configured = with_endpoint(config, jobs.endpoint_url)
    tiers = tier_stores(jobs.root, job, RunConfig.model_validate(configured)) if configured else [store]
    try:
        target = rewind_job(tiers[0], to_step, tiers[1:])
    except GenerationLostError as error:
        raise CommandFailed(str(error)) from None
    click.echo(f"job {job} continues from step {target.step} of generation {target.generation}")
    click.echo("until its next run, `convoy show` and `convoy list` describe the job as it was before")


@click.command()
@click.argument("job")
@with_jobs
@click.option("--tensorboard", type=click.Path(file_okay=False), help="Folder for a TensorBoard log.")
@click.option("--mlflow", metavar="URI", help="MLflow tracking URI.")
@click.option("--wandb", metavar="PROJECT", help="Project of Weights & Biases; offline with WANDB_MODE=offline.")
@click.option("--experiment", default=None, help="MLflow experiment. Default: $MLFLOW_EXPERIMENT_NAME, or convoy.")
def replay(
    jobs: Jobs, job: str, tensorboard: str | None, mlflow: str | None, wandb: str | None, experiment: str | None
) -> None:
    """Send JOB's event log to other tools.

    A tool that has followed the job gets what it lacks.
    """
    if not (tensorboard or mlflow or wandb):
        raise ConfigError("replay: needs --tensorboard FOLDER, --mlflow URI or --wandb PROJECT")
    named = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
    configs = [_tracker_config(kind, target) for kind, target in named.items() if target]
    store, events, config = jobs.read(job)
    starts = [event for event in events if isinstance(event, GenerationStarted)]
    tracked = TrackedRun(
        job=job,
        uri=store.uri,
        run=starts[-1].run if starts else "",
        card=f"convoy show {shlex.quote(job)}",
        started=min((event.t for event in events), default=0.0),
        parameters={key: value for key, value in config.items() if key not in ("trackers", "notify")},
    )
    for each in configs:
        click.echo(_replay_to(each, tracked, events, store, experiment))


def _tracker_config(kind: str, target: str) -> TrackerConfig:
    """Raises ConfigError, without the target's text where it may hold a password."""
    try:
        return TrackerConfig.model_validate({kind: target})
    except ValidationError as error:
        raise ConfigError(f"--{first_problem_line(error, TrackerConfig)}") from None


def _replay_to(
    config: TrackerConfig, run: TrackedRun, events: Sequence[Event], store: Store, experiment: str | None
) -> str:
    """How much was sent where."""
    tracker = tracker_for(config, experiment)
    sent = send_log(tracker, run, events, store, tracker_key(config))
    return f"{sent} new scalars are in {tracker.place}"


@click.command("list")
@with_jobs
@JSON
def list_jobs(jobs: Jobs, as_json: bool) -> None:
    """List the jobs under the root, the one that started last first.

    The age of a job counts from when it was made.
    """
    stores, now = list(jobs.stores().items()), time.time()
    lines = in_parallel(lambda i: job_line(*stores[i]), len(stores), reader_threads(jobs.root))
    lines.sort(key=lambda line: line.started or 0.0, reverse=True)
    if as_json:
        click.echo(json.dumps([line.model_dump() for line in lines], indent=2))
        return
    if not lines:
        click.echo(f"There are no jobs under {jobs.root}.")
        return
    table = columns(
        lines,
        Column("Job", lambda line: line.job),
        Column("State", lambda line: line.state),
        Column("Step", _step_text),
        Column("Age", lambda line: None if line.created is None else max(now - line.created, 0.0), duration),
        Column("Cost", lambda line: line.usd, usd, missing="—"),
    )
    show_page(Page("Jobs", (table,)), Console())
    for line in lines:
        if line.problem:
            click.echo(f"{line.job}: {line.problem}")


def _step_text(line: JobLine) -> str:
    if line.problem:
        return ""
    return f"{line.step or 0:,}" + ("" if line.steps is None else f" of {line.steps:,}")


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
        _print_log_table([log for log in available if generation in (None, log.generation)])
        return
    log = choose_log(available, rank, generation)
    start = 0 if lines is None else start_of_last_lines(store, log, lines)
    out, current = sys.stdout.buffer, log
    for of, data in follow_rank(store, log, start, follow=follow):
        if of != current:
            click.echo(f"convoy: rank {rank}, generation {of.generation}", err=True)
            current = of
        out.write(data)
        out.flush()


def _print_log_table(logs: Sequence[RankLog]) -> None:
    if not logs:
        click.echo("no logs yet")
        return
    table = columns(
        logs,
        Column("Generation", lambda log: log.generation, right=True),
        Column("Node", lambda log: log.node, right=True),
        Column("Rank", lambda log: log.rank, right=True),
        Column("Size", lambda log: log.bytes, size, right=True),
    )
    show_page(Page("Logs", (table,)), Console())
