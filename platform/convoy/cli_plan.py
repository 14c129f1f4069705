"""`convoy plan`: what a run will need and take, and how far such a prediction can be trusted."""

from typing import TYPE_CHECKING, Any

import click

from convoy.cli_places import ENDPOINT, ROOT
from convoy.cli_plan_search import search

if TYPE_CHECKING:
    from pathlib import Path

    from convoy.planner.calibration import Calibration
    from convoy.planner.failures import Restart, Saving

_CALIBRATION = click.option(
    "--calibration",
    type=click.Path(exists=True, dir_okay=False),
    help="Of `calibrate`, in place of the shipped one.",
)

_POSITIVE = click.FloatRange(min=0, min_open=True)


class _ShowByDefault(click.Group):
    """Words that name no command are those of `show`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ShowByDefault)
def plan() -> None:
    """What a run will need and take, before it starts: convoy plan CONFIG, short for convoy plan show CONFIG."""


plan.add_command(search)


@plan.command()
@click.argument("config")
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="As for a flow; may be repeated.")
@_CALIBRATION
@click.option("--stall-seconds", type=_POSITIVE, help="For which a save stops training, as measured.")
@click.option("--durable-seconds", type=_POSITIVE, help="Until a save is of use, as measured; with --stall-seconds.")
@click.option("--restart-seconds", type=_POSITIVE, help="Once all machines are there again, as measured.")
@click.option("--replacement-seconds", type=_POSITIVE, help="Until there is another machine. Default: 600, assumed.")
@click.option("--write-gb-per-second", type=_POSITIVE, help="Of each machine to the root, while all others write too.")
@ROOT
@ENDPOINT
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def show(
    config: str, words: tuple[str, ...], root: str | None, endpoint_url: str | None, as_json: bool, **measured: Any
) -> None:
    """Plan the run of CONFIG, a file or a preset of configs/train: memory, time of a step, tokens/s, cost.

    Prices are the catalog's and those that `convoy prices refresh` left below the root; a root in a bucket is asked
    only where --root names it. What nobody measured is assumed, and said.
    """
    from rich.console import Console

    from convoy.cli_plan_config import host, known_prices, read_config
    from convoy.config.errors import ConfigError
    from convoy.planner.given import Given
    from convoy.planner.plan import plan
    from convoy.report.plan_page import plan_page
    from convoy.report.terminal import show

    told = read_config(config, words)
    rate = measured["write_gb_per_second"]
    given = Given(
        saving=_saving(measured["stall_seconds"], measured["durable_seconds"]),
        restart=_restart(measured["restart_seconds"]),
        replacement_seconds=measured["replacement_seconds"],
        node_bytes_per_second=rate and rate * 1e9,
        calibration=_calibration(measured["calibration"]),
        prices=known_prices(root, told.root, endpoint_url),
        **host(told),
    )
    try:
        found = plan(told, given)
    except ValueError as error:
        raise ConfigError(f"{config}: {error}") from None
    if as_json:
        click.echo(found.model_dump_json(indent=1))
    else:
        show(plan_page(found), Console())


@plan.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@_CALIBRATION
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def validate(file: str, calibration: str | None, as_json: bool) -> None:
    """Compare predictions with the measured runs of FILE, a CSV file in the columns of docs/planner.md."""
    from pathlib import Path

    from rich.console import Console

    from convoy.config.errors import ConfigError
    from convoy.planner.published import published, read_measured
    from convoy.planner.ran import memory_of
    from convoy.planner.validate import validate
    from convoy.planner.validate_page import validation_page
    from convoy.report.terminal import show

    constants, measured, known = _calibration(calibration), read_measured(Path(file)), published()
    try:
        found = validate(measured, known, constants, lambda row: memory_of(row).fits)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None
    if as_json:
        click.echo(found.model_dump_json(indent=1))
    else:
        show(validation_page(found, measured, constants), Console())


@plan.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("output", type=click.Path(dir_okay=False, path_type=str))
def calibrate(file: str, output: str) -> None:
    """Fit the constants to the measured runs of FILE, a CSV file as for `validate`, and write them to OUTPUT."""
    from pathlib import Path

    from convoy.config.errors import ConfigError
    from convoy.planner.fit import fit
    from convoy.planner.prior import prior
    from convoy.planner.published import read_measured

    before, measured = prior(), read_measured(Path(file))
    try:
        found = fit(measured, before)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None
    _write(Path(output), found)
    told = found.fitted
    assert told is not None
    click.echo(f"{output}: {told.rows} runs, off by a median of {told.median_abs_pct_error} %")


def _saving(stall: float | None, durable: float | None) -> "Saving | None":
    from convoy.config.errors import ConfigError
    from convoy.planner.failures import Saving

    if stall is None and durable is not None:
        raise ConfigError("--durable-seconds: must come with --stall-seconds")
    return None if stall is None else Saving(stall, durable or stall)


def _restart(seconds: float | None) -> "Restart | None":
    from convoy.planner.failures import Restart

    return None if seconds is None else Restart(seconds)


def _calibration(path: str | None) -> "Calibration":
    from pathlib import Path

    from convoy.planner.calibration import read_calibration, shipped

    return shipped() if path is None else read_calibration(Path(path))


def _write(path: "Path", calibration: "Calibration") -> None:
    from convoy.config.errors import ConfigError

    try:
        path.write_text(calibration.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
