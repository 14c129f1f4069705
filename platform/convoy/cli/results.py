"""Commands on what was measured: `convoy compare`, `bench summary`, `audit` and `plan calibrate`."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from convoy.audit.audit import audit as audit_claims
from convoy.audit.claims import read_claims
from convoy.audit.findings import audit_page
from convoy.benchmark.analysis.network_for_planner import catalog_constants, measured_links
from convoy.benchmark.analysis.summary import summarise
from convoy.benchmark.fold import fold_cases
from convoy.benchmark.pages.history import compare_page
from convoy.benchmark.pages.summary import summary_page
from convoy.benchmark.planner_fit import PlannerFit, fit_planner_to
from convoy.benchmark.results import compare as comparing
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.files import ResultUnreadableError, named_folders, read_case, read_cases
from convoy.benchmark.results.network import SUITE_NAME
from convoy.cli.options import JSON, print_result
from convoy.config.errors import ConfigError
from convoy.display.formatting import plural
from convoy.planner.step.calibration import Calibration, prior, shipped_calibration
from convoy.planner.validation.fit import fit_calibration
from convoy.planner.validation.published import read_measured
from convoy.planner.validation.validate import median_abs

INCONSISTENT = 3
"""Exit code where claims cannot all be true."""


def read_results(path: Path) -> list[Case]:
    """A folder's cases, or one file's. Raises ConfigError."""
    try:
        return read_cases(path) if path.is_dir() else [read_case(path)]
    except ResultUnreadableError as error:
        raise ConfigError(str(error)) from None


@click.command()
@click.argument("first", metavar="RESULT", type=click.Path(exists=True))
@click.argument("second", metavar="RESULT", type=click.Path(exists=True))
@JSON
def compare(first: str, second: str, as_json: bool) -> None:
    """Compare the second RESULT with the first: two files of cases, or two folders of them.

    Only what has the same fingerprint is compared: hardware, versions, environment and configuration. Exit code 2, with
    what differs, if it has not.
    """
    try:
        comparison = _compare_paths(Path(first), Path(second))
    except comparing.OtherFingerprintError as error:
        click.echo(f"convoy: {first} and {second} may not be compared:", err=True)
        for line in error.lines:
            click.echo(f"  {line}", err=True)
        sys.exit(2)
    print_result(comparison, compare_page(comparison), as_json)


@click.command()
@click.argument("results", metavar="RESULTS", nargs=-1, required=True, type=click.Path(exists=True))
@JSON
def summary(results: tuple[str, ...], as_json: bool) -> None:
    """One page of the models of all RESULTS: speed-up, share of GPU memory, scaling, cost.

    Each of RESULTS is a folder of a benchmark's cases, such as one for each kind of machine.
    """
    folders = named_folders([Path(each) for each in results])
    found = summarise({name: fold_cases(read_results(folder)) for name, folder in folders.items()})
    print_result(found, summary_page(found), as_json)


def _compare_paths(first: Path, second: Path) -> comparing.Comparisons:
    if first.is_dir() != second.is_dir():
        raise ConfigError(f"{first} and {second}: must be two files or two folders")
    before, after = read_results(first), read_results(second)
    if first.is_dir():
        return comparing.compare_all(before, after)
    return comparing.Comparisons(cases=comparing.compare(before[0], after[0]))


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@JSON
def audit(file: Path, as_json: bool) -> None:
    """Recompute what the claims of FILE imply of each other and of the hardware's limits.

    FILE is YAML; docs/reference/claims.md has its keys. Exit code 0 if the claims agree, 3 if some cannot be true, and
    2 if FILE cannot be read. What is only unlikely, or cannot be checked, does not change it.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigError(f"{file}: cannot be read: {reason}") from None
    result = audit_claims(read_claims(text, str(file)))
    print_result(result, audit_page(result), as_json)
    if not result.consistent:
        sys.exit(INCONSISTENT)


@click.command()
@click.argument("results", type=click.Path(exists=True))
@click.argument("output", type=click.Path(dir_okay=False))
def calibrate(results: str, output: str) -> None:
    """Fit the constants to the measured runs of RESULTS, and write them to OUTPUT.

    RESULTS is a folder of a benchmark's cases, as `run_benchmarks.py` and the benchmark flow write them, or one such
    case; or a CSV file as for `validate`.
    """
    path = Path(results)
    is_benchmark = path.is_dir() or path.suffix == ".json"
    try:
        if is_benchmark:
            calibration, lines = _fit_cases(read_results(path))
        else:
            calibration, lines = _fit_csv(path)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{results}: {error}") from None
    try:
        Path(output).write_text(calibration.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{output}: {error.strerror}") from None
    click.echo(f"{output}: {lines[0]}")
    for line in lines[1:]:
        click.echo(line)


def _fit_cases(cases: Sequence[Case]) -> tuple[Calibration, list[str]]:
    """The calibration, and the lines to print about it. What the network suite measured replaces what trainings, or the
    shipped constants, say of the network."""
    network = [case for case in cases if case.suite == SUITE_NAME]
    trainings = [case for case in cases if case.suite != SUITE_NAME]
    calibration, lines = shipped_calibration(), list[str]()
    if trainings or not network:
        own = fit_planner_to(trainings)
        calibration, lines = own.calibration, list(_describe_fit_errors(own))
    links, constants = measured_links(network), catalog_constants(network)
    if network and not links:
        raise ValueError("no collective was measured that training uses: all_gather, reduce_scatter or all_reduce")
    for each in links:
        where = "between hosts" if each.hosts > 1 else "within a host"
        lines.append(f"collectives {where}, of {plural(each.ranks, 'rank')} on {plural(each.hosts, 'host')}")
    lines += [f"{name}: {value:g}" for name, value in constants.items()]
    changed = {"links": links, "constants": calibration.constants.model_copy(update=constants)}
    return calibration.model_copy(update=changed if network else {}), lines


def _fit_csv(path: Path) -> tuple[Calibration, list[str]]:
    """The calibration, and the lines to print about it."""
    calibration = fit_calibration(read_measured(path), prior())
    fitted = calibration.fitted
    assert fitted is not None
    return calibration, [f"{fitted.rows} runs, off by a median of {fitted.median_abs_pct_error} %"]


def _describe_fit_errors(fitted: PlannerFit) -> Iterator[str]:
    yield f"{plural(len(fitted.rows), 'case')} of {plural(fitted.trainings, 'training')} not configured alike, off by"
    yield f"  {_error_summary(fitted.before)} as it was shipped"
    yield f"  {_error_summary(fitted.after)} as fitted to them, which is no claim about others"
    if fitted.others:
        yield f"  {_error_summary(fitted.others)} each training by a fit to the others"
    if fitted.left_out:
        yield f"left out, {plural(len(fitted.left_out), 'case')}:"
    for why in dict.fromkeys(each.why for each in fitted.left_out):
        yield f"  {why}: {', '.join(each.case for each in fitted.left_out if each.why == why)}"


def _error_summary(percent_errors: Sequence[float]) -> str:
    return f"a median of {median_abs(percent_errors):.1f} %, {max(map(abs, percent_errors)):.1f} % at worst,"
