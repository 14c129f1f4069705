"""The `convoy` command. What a subcommand needs is imported when it runs, so that `convoy --help` is quick."""

import sys
from typing import TYPE_CHECKING, Any

import click

from convoy.cli.audit import audit
from convoy.cli.checkpoints import checkpoints
from convoy.cli.compare import compare
from convoy.cli.drill import drill
from convoy.cli.init import init
from convoy.cli.list import list_jobs
from convoy.cli.logs import logs
from convoy.cli.options import (
    ENDPOINT,
    ROOT,
    configuration,
    existing_job,
    jobs_under,
    named_or_newest,
    reached,
    root_of,
)
from convoy.cli.plan import plan
from convoy.cli.prices import prices
from convoy.cli.run import drain, run

if TYPE_CHECKING:
    from convoy.job.events.types import AnyEvent
    from convoy.storage import Store


class _Failed(click.ClickException):
    """Ends the command with one line on stderr."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))

    def show(self, file: Any = None) -> None:
        click.echo(f"convoy: {self.message}", err=True)


class _Refused(_Failed):
    """The same, for what the user can mend."""

    exit_code = 2


class _PlainErrors(click.Group):
    """Bad input is one line and exit code 2; an outage, or another writer, is one line and exit code 1."""

    def invoke(self, ctx: click.Context) -> object:
        from pydantic import ValidationError

        from convoy.config.errors import ConfigError, first_mistake
        from convoy.storage import StoreUnavailable

        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise _Refused(error) from None
        except ValidationError as error:  # of an object that a job keeps, such as a configuration
            raise _Refused(ConfigError(f"{error.title}: {first_mistake(error)}")) from None
        except StoreUnavailable as error:
            raise _Failed(error) from None


@click.group(cls=_PlainErrors)
@click.version_option(package_name="metaflow-convoy")
def main() -> None:
    """Look at, move and check Convoy's jobs."""


main.add_command(audit)
main.add_command(checkpoints)
main.add_command(compare)
main.add_command(drain)
main.add_command(drill)
main.add_command(init)
main.add_command(list_jobs)
main.add_command(logs)
main.add_command(plan)
main.add_command(prices)
main.add_command(run)


@main.command()
def doctor() -> None:
    """Say what this machine can do and what is wrong; exit code 1 if something is."""
    from rich.console import Console

    from convoy.doctor import run_doctor

    sys.exit(run_doctor(Console()))


@main.command()
@click.argument("job", required=False)
@ROOT
@ENDPOINT
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def show(job: str | None, root: str | None, endpoint_url: str | None, as_json: bool) -> None:
    """Summarise JOB from its event log.

    Without JOB, the job that started last.
    """
    import json
    import time

    from rich.console import Console

    from convoy.display.terminal import show as show_page
    from convoy.job.heartbeat import heartbeat
    from convoy.job.record import SCRIPT_DATA, read_record, target_steps
    from convoy.launch.plans import read_plan
    from convoy.report.fold import fold
    from convoy.report.pages.script import script_page
    from convoy.report.pages.train import final_page
    from convoy.report.to_json import to_json

    named = named_or_newest(root, job, endpoint_url)
    beat = heartbeat(
        existing_job(root, named, endpoint_url), time.time()
    )  # first: a run that ends now is in the log then
    store, events, config = _open(root, named, endpoint_url)
    report = fold(events, target_steps(store, config), beat)
    if as_json:
        click.echo(json.dumps(to_json(report), indent=2, allow_nan=False))
        return
    record = read_record(store)
    if record is not None and record.fingerprint == SCRIPT_DATA:
        show_page(script_page(report, record.model), Console())
    else:
        show_page(final_page(report, config, {"Job": store.uri}, read_plan(store)), Console())


@main.command()
@click.argument("job", required=False)
@ROOT
@ENDPOINT
@click.option("--follow/--no-follow", default=True, help="Go on until the job ends.")
def tail(job: str | None, root: str | None, endpoint_url: str | None, follow: bool) -> None:
    """Print JOB's steps and events as they come.

    Without JOB, those of the job that started last.
    """
    from convoy.report.tail import follow as follow_log

    store, _, _ = _open(root, named_or_newest(root, job, endpoint_url), endpoint_url)
    for line in follow_log(store, follow):
        click.echo(line)


@main.command()
@click.argument("words", nargs=-1, required=True, metavar="[JOB] FOLDER")
@ROOT
@ENDPOINT
@click.option("--to", "kind", type=click.Choice(["hf"]), required=True, help="Hugging Face folder of safetensors.")
@click.option("--step", type=int, default=None, help="Of the newest commit that counts at or below this step.")
def export(words: tuple[str, ...], root: str | None, endpoint_url: str | None, kind: str, step: int | None) -> None:
    """Write JOB's weights to FOLDER in a form that other software loads.

    Without JOB, those of the job that started last.
    """
    from pathlib import Path

    job, folder = _job_and_folder(words, root, endpoint_url)
    _, _, config = _open(root, job, endpoint_url)  # before torch is imported: a wrong name is told at once
    from convoy.checkpoint.format import DamagedCommitError
    from convoy.data.manifest import DataDamaged
    from convoy.training.export import export_job

    try:
        ref = export_job(root_of(root), job, reached(config, endpoint_url), Path(folder), step)
    except (DamagedCommitError, DataDamaged) as error:
        raise _Failed(error) from None
    click.echo(f"step {ref.step} of generation {ref.generation} is in {folder} ({kind})")


def _job_and_folder(words: tuple[str, ...], root: str | None, endpoint_url: str | None) -> tuple[str, str]:
    from pathlib import Path

    from convoy.config.errors import ConfigError

    if len(words) > 2:
        raise ConfigError(f"export: takes JOB and FOLDER, not {len(words)} words: {' '.join(words)}")
    if len(words) == 1 and words[0] in jobs_under(root, endpoint_url):
        raise ConfigError(f"FOLDER: missing after the name of a job, {words[0]}")
    folder = words[-1]
    if Path(folder).is_file():
        raise ConfigError(f"FOLDER = {folder}: is a file")
    return named_or_newest(root, words[0] if len(words) == 2 else None, endpoint_url), folder


@main.command()
@click.argument("job")
@ROOT
@ENDPOINT
@click.option("--to", "to_step", type=int, required=True, help="Go on from the newest commit at or below this step.")
def rewind(job: str, root: str | None, endpoint_url: str | None, to_step: int) -> None:
    """Let JOB go on from an earlier checkpoint; what came after it is never read again, and pruned in time."""
    from convoy.config.run import RunConfig
    from convoy.job.generations import GenerationLostError
    from convoy.job.generations import rewind as rewind_job
    from convoy.job.heartbeat import check_not_live
    from convoy.job.record import tier_stores

    store, _, config = _open(root, job, endpoint_url)
    check_not_live(store, job)
    how = reached(config, endpoint_url)
    tiers = tier_stores(root_of(root), job, RunConfig.model_validate(how)) if how else [store]
    try:
        target = rewind_job(tiers[0], to_step, tiers[1:])
    except GenerationLostError as error:
        raise _Failed(error) from None
    click.echo(f"job {job} goes on from step {target.step} of generation {target.generation}")
    click.echo("until its next run, `convoy show` and `convoy list` describe the job as it was before")


@main.command()
@click.argument("job")
@ROOT
@ENDPOINT
@click.option("--tensorboard", type=click.Path(file_okay=False), help="Folder for a TensorBoard log.")
@click.option("--mlflow", metavar="URI", help="MLflow tracking URI.")
@click.option("--experiment", default="convoy", show_default=True, help="MLflow experiment.")
def replay(
    job: str,
    root: str | None,
    endpoint_url: str | None,
    tensorboard: str | None,
    mlflow: str | None,
    experiment: str,
) -> None:
    """Give JOB's event log to other tools."""
    from convoy.config.errors import ConfigError
    from convoy.report.trackers import to_mlflow, to_tensorboard

    if not (tensorboard or mlflow):
        raise ConfigError("replay: needs --tensorboard FOLDER or --mlflow URI")
    _, events, config = _open(root, job, endpoint_url)
    if tensorboard:
        click.echo(f"{to_tensorboard(events, tensorboard)} scalars are in {tensorboard}")
    if mlflow:
        click.echo(f"MLflow run {to_mlflow(events, mlflow, experiment, job, config)}")


def _open(root: str | None, job: str, endpoint_url: str | None) -> "tuple[Store, list[AnyEvent], dict[str, Any]]":
    """A job's store, its log, and the configuration it ran with last. Raises ConfigError if there is no such job."""
    from convoy.job.events.log import read_events
    from convoy.job.lineage import read_history

    store = existing_job(root, job, endpoint_url)
    return store, read_events(store), configuration(store, read_history(store))


if __name__ == "__main__":
    main()
