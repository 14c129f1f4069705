"""`convoy compare`: two runs of the same benchmark."""

import sys
from pathlib import Path

import click

from convoy.benchmark.pages.history import compare_page
from convoy.benchmark.results import compare as comparing
from convoy.benchmark.results.files import ResultUnreadableError, read_case, read_cases
from convoy.cli.options import JSON, print_result
from convoy.config.errors import ConfigError


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
        comparison = _compared(Path(first), Path(second))
    except ResultUnreadableError as error:
        raise ConfigError(str(error)) from None
    except comparing.OtherFingerprintError as error:
        click.echo(f"convoy: {first} and {second} may not be compared:", err=True)
        for line in error.lines:
            click.echo(f"  {line}", err=True)
        sys.exit(2)
    print_result(comparison, compare_page(comparison), as_json)


def _compared(first: Path, second: Path) -> comparing.Comparisons:
    if first.is_dir() != second.is_dir():
        raise ConfigError(f"{first} and {second}: must be two files or two folders")
    if first.is_dir():
        return comparing.compare_all(read_cases(first), read_cases(second))
    return comparing.Comparisons(cases=(comparing.compare(read_case(first), read_case(second)),))
