"""`convoy net import` and `convoy net export`: results of other tools as cases, and cases as results of nccl-tests."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from convoy.benchmark.pages.imported import ImportedFile, Imports, imports_page
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.exported import case_operation, exported_run
from convoy.benchmark.results.files import write_case
from convoy.benchmark.results.imported import imported_cases
from convoy.benchmark.results.network import IN_PLACE_SUFFIX
from convoy.cli.options import JSON, print_result
from convoy.cli.results import read_results
from convoy.config.errors import ConfigError, name_hint
from convoy.network.results.nccl_json import format_nccl_json
from convoy.network.results.nccl_run import PROGRAMS, NcclOperation
from convoy.network.results.read import read_result


@click.command("import")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--op", default=None, help="The operation, of an excerpt of nccl-tests that does not name it.")
@click.option("--ranks", type=click.IntRange(2), help="The ranks, of an excerpt that does not name them.")
@click.option("--link-gbps", type=float, help="Rate of a host's network per direction, for the bound on bandwidths.")
@click.option("-o", "--output", type=click.Path(file_okay=False, path_type=Path), help="Folder to write the cases to.")
@JSON
def import_files(
    files: tuple[Path, ...],
    op: str | None,
    ranks: int | None,
    link_gbps: float | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Read results of other tools: nccl-tests (text or JSON), ib_write_bw, ibstat, fi_pingpong, iperf3 --json,
    nvbandwidth --json.

    The tool is recognised by the content of each FILE. Bandwidths are recomputed from the times. If a row cannot be
    true, it is listed with its line, and the exit code is 1.
    """
    if link_gbps is not None and link_gbps <= 0:
        raise ConfigError(f"--link-gbps {link_gbps:g}: must be more than 0")
    operation = _operation(op)
    imports = Imports(files=tuple(_import_file(file, operation, ranks, link_gbps) for file in files))
    if output is not None:
        _write(imports, output)
    print_result(imports, imports_page(imports), as_json)
    if any(each.contradictions for each in imports.files):
        sys.exit(1)


def _operation(name: str | None) -> NcclOperation | None:
    known = {str(each): each for each in PROGRAMS.values()}
    if name is not None and name not in known:
        raise ConfigError(f"--op {name}: must be one of {', '.join(known)}; {name_hint(name, list(known))}")
    return known[name] if name is not None else None


def _import_file(
    path: Path, operation: NcclOperation | None, ranks: int | None, link_gbps: float | None
) -> ImportedFile:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        result = read_result(text, operation, ranks, None if link_gbps is None else link_gbps * 1e9 / 8)
        cases = imported_cases(result, changed)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return ImportedFile.of(str(path), result, cases, link_gbps)


def _write(imports: Imports, folder: Path) -> None:
    sources: dict[str, str] = {}
    for file in imports.files:
        for case in file.cases:
            if case.key in sources:
                raise ConfigError(
                    f"{file.path}: {case.key} is also in {sources[case.key]}; write each to a folder of its own"
                )
            sources[case.key] = file.path
    for file in imports.files:
        for case in file.cases:
            try:
                write_case(folder, case)
            except OSError as error:
                raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from None


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Output file, instead of stdout.")
@click.option("--case", "name", help="Name of the case, where RESULTS has several, such as backend or ring.")
def export(results: Path, output: Path | None, name: str | None) -> None:
    """Write a case of a collective as JSON of nccl-tests, version 3.

    RESULTS is a file of one case, or a folder; an in-place case is written with its out-of-place case. Only the
    network's environment variables are written, and none that may hold a secret.
    """
    chosen = _chosen_cases(results, name)
    text = format_nccl_json(exported_run(chosen))
    if output is None:
        click.echo(text)
        return
    try:
        output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output}: {error.strerror}") from None


def _chosen_cases(results: Path, name: str | None) -> Sequence[Case]:
    """One case and the same in place, of a file or folder. Raises ConfigError unless there is exactly one such."""
    found: dict[str, list[Case]] = {}
    for case in read_results(results):
        try:
            case_operation(case)
        except ValueError as error:
            if results.is_file():
                raise ConfigError(str(error)) from None
            continue
        own = case.name.removesuffix(IN_PLACE_SUFFIX)
        if name in (None, own, case.name):
            found.setdefault(f"{case.group} {own}", []).append(case)
    if len(found) != 1:
        what = f"--case {name}" if name else str(results)
        known = (
            f"of {', '.join(found)} choose one, by its file or --case" if found else "there is no case of a collective"
        )
        raise ConfigError(f"{what}: {known}")
    return next(iter(found.values()))
