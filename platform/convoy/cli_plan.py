"""`convoy plan`: what a run will need and take, and how far such a prediction can be trusted."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

    from convoy.planner.calibration import Calibration

_CALIBRATION = click.option(
    "--calibration",
    type=click.Path(exists=True, dir_okay=False),
    help="Of `calibrate`, in place of the shipped one.",
)


@click.group()
def plan() -> None:
    """What a run will need and take, before it starts."""


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
    from convoy.planner.validate import validate
    from convoy.planner.validate_page import validation_page
    from convoy.report.terminal import show

    constants, measured, known = _calibration(calibration), read_measured(Path(file)), published()
    try:
        found = validate(measured, known, constants)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None
    if as_json:
        click.echo(found.model_dump_json(indent=1))
    else:
        seen = sum(row in known for row in measured) if calibration is None else 0
        show(validation_page(found, measured, constants, seen), Console())


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
