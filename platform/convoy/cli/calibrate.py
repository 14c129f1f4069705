"""`convoy plan calibrate`: the constants of the step's time from measured runs, others' or one's own."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

    from convoy.benchmark.planner_fit import OwnFit
    from convoy.benchmark.planner_runs import LeftOut
    from convoy.benchmark.results.case import Case
    from convoy.planner.step.calibration import Calibration

    Fitted = tuple[Calibration, list[str]]
    """And the lines that are told of it."""


@click.command()
@click.argument("results", type=click.Path(exists=True))
@click.argument("output", type=click.Path(dir_okay=False))
def calibrate(results: str, output: str) -> None:
    """Fit the constants to the measured runs of RESULTS, and write them to OUTPUT.

    RESULTS is a folder of a benchmark's cases, as `run_benchmarks.py` and the benchmark flow write them, or one such
    case; or a CSV file as for `validate`.
    """
    from pathlib import Path

    from convoy.config.errors import ConfigError

    path = Path(results)
    of = _of_cases(path) if path.is_dir() or path.suffix == ".json" else _of_table(path)
    try:
        found, lines = of()
    except ValueError as error:
        raise ConfigError(f"{results}: {error}") from None
    _write(Path(output), found)
    click.echo(f"{output}: {lines[0]}")
    for line in lines[1:]:
        click.echo(line)


def read_results(path: "Path") -> "list[Case]":
    """A folder's cases, or one file's. Raises ConfigError."""
    from convoy.benchmark.results.files import ResultUnreadableError, read_case, read_cases
    from convoy.config.errors import ConfigError

    try:
        return read_cases(path) if path.is_dir() else [read_case(path)]
    except ResultUnreadableError as error:
        raise ConfigError(str(error)) from None


def _of_table(path: "Path") -> "Callable[[], Fitted]":
    from convoy.planner.step.calibration import prior
    from convoy.planner.validation.fit import fit
    from convoy.planner.validation.published import read_measured

    measured, before = read_measured(path), prior()

    def fitted() -> "Fitted":
        found = fit(measured, before)
        told = found.fitted
        assert told is not None
        return found, [f"{told.rows} runs, off by a median of {told.median_abs_pct_error} %"]

    return fitted


def _of_cases(path: "Path") -> "Callable[[], Fitted]":
    from convoy.benchmark.planner_fit import own_fit

    cases = read_results(path)

    def fitted() -> "Fitted":
        found = own_fit(cases)
        return found.calibration, list(_told(found))

    return fitted


def _told(found: "OwnFit") -> "Iterator[str]":
    from convoy.display.formatting import plural

    yield f"{plural(len(found.rows), 'case')} of {plural(found.trainings, 'training')} not configured alike, off by"
    yield f"  {_errors(found.before)} as it was shipped"
    yield f"  {_errors(found.after)} as fitted to them, which is no claim about others"
    if found.others:
        yield f"  {_errors(found.others)} each training by a fit to the others"
    if found.left_out:
        yield f"left out, {plural(len(found.left_out), 'case')}:"
        yield from _reasons(found.left_out)


def _errors(wrong: "Sequence[float]") -> str:
    from convoy.planner.validation.validate import median_abs

    return f"a median of {median_abs(wrong):.1f} %, {max(map(abs, wrong)):.1f} % at worst,"


def _reasons(left_out: "Sequence[LeftOut]") -> "Iterator[str]":
    """Each once, with its cases."""
    for why in dict.fromkeys(each.why for each in left_out):
        yield f"  {why}: {', '.join(each.case for each in left_out if each.why == why)}"


def _write(path: "Path", calibration: "Calibration") -> None:
    from convoy.config.errors import ConfigError

    try:
        path.write_text(calibration.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
