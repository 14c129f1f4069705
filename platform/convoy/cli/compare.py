"""`convoy compare`: two runs of the same benchmark, one beside the other."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

    from convoy.benchmark.results.compare import Comparisons


@click.command()
@click.argument("first", metavar="RESULT", type=click.Path(exists=True))
@click.argument("second", metavar="RESULT", type=click.Path(exists=True))
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def compare(first: str, second: str, as_json: bool) -> None:
    """How the second RESULT stands to the first: two files of cases, or two folders of them.

    Only what has the same fingerprint is compared: hardware, versions, environment and configuration. Exit code 2, with
    what differs, if it has not.
    """
    import sys
    from pathlib import Path

    from rich.console import Console

    from convoy.benchmark.pages.history import compare_page
    from convoy.benchmark.results.compare import OtherFingerprintError
    from convoy.benchmark.results.files import ResultUnreadableError
    from convoy.config.errors import ConfigError
    from convoy.display.terminal import show

    try:
        comparison = _compared(Path(first), Path(second))
    except ResultUnreadableError as error:
        raise ConfigError(str(error)) from None
    except OtherFingerprintError as error:
        click.echo(f"convoy: {first} and {second} may not be compared:", err=True)
        for line in error.lines:
            click.echo(f"  {line}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(comparison.model_dump_json(indent=1))
    else:
        show(compare_page(comparison), Console())


def _compared(first: "Path", second: "Path") -> "Comparisons":
    from convoy.benchmark.results.compare import Comparisons, compare, compare_all
    from convoy.benchmark.results.files import read_case, read_cases
    from convoy.config.errors import ConfigError

    if first.is_dir() != second.is_dir():
        raise ConfigError(f"{first} and {second}: must be two files or two folders")
    if first.is_dir():
        return compare_all(read_cases(first), read_cases(second))
    return Comparisons(cases=(compare(read_case(first), read_case(second)),))
