"""A report over a folder of benchmark results, or over several that stand side by side.

    python benchmarks/generate_report.py FOLDER … --format html|md|json [--output FILE] [--earlier FOLDER …]

FOLDER holds a JSON file for each case (docs/reference/benchmark-results.md). Each of several folders is a benchmark by
itself, such as one for each kind of machine; one table has time and cost on all of them. HTML is one file that opens
offline, follows a light or dark scheme, and prints; JSON has the figures under the names of
`convoy.benchmark.analysis.report`, and by folder if there are several. The same results give the same bytes. Without
--output, HTML is written to report.html in the first FOLDER, and Markdown and JSON to standard output. --earlier, which
may be repeated, names folders of earlier results: those of the same fingerprint are the history in which changes are
looked for. --prices names the `prices.json` that `convoy prices refresh` wrote below a root; its prices are used next
to the catalog's.
"""

import importlib.util
import sys

if importlib.util.find_spec("convoy") is None:
    how = "in a clone run `make train`, then `. .venv/bin/activate`; elsewhere `pip install metaflow-convoy`"
    print(f"convoy: {sys.executable} has no convoy: {how}", file=sys.stderr)
    sys.exit(2)

import argparse
from pathlib import Path

from convoy.benchmark.analysis.history import rates_by_fingerprint
from convoy.benchmark.analysis.report import BenchReport
from convoy.benchmark.fold import fold_cases
from convoy.benchmark.page import BenchReports, page_of, page_of_several
from convoy.benchmark.results.files import ResultUnreadableError, named_folders, read_cases
from convoy.catalog.prices import SHIPPED, PriceBook, parse_price_list
from convoy.config.errors import ConfigError
from convoy.display.html import draw_svg, to_html
from convoy.display.markdown import to_markdown
from convoy.display.page import Page


def main(arguments: argparse.Namespace) -> None:
    """Raises what stands in the way, as one line."""
    past = rates_by_fingerprint(case for folder in arguments.earlier for case in read_cases(folder))
    before, prices = past if arguments.earlier else None, _prices(arguments.prices)
    named = named_folders(arguments.folders)
    reports = {name: fold_cases(read_cases(folder), before, prices) for name, folder in named.items()}
    report = BenchReports(folders=reports) if len(reports) > 1 else next(iter(reports.values()))
    match arguments.format:
        case "json":
            text = report.model_dump_json(indent=1) + "\n"
        case "md":
            text = to_markdown(_page(report, arguments.title))
        case _:
            text = to_html(_page(report, arguments.title), draw_svg)
    output = arguments.output
    if output is None and arguments.format == "html":
        output = arguments.folders[0] / "report.html"
        print(f"generate_report: the report is {output}", file=sys.stderr)
    if output is None:
        sys.stdout.buffer.write(text.encode())
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(text.encode())


def _page(report: BenchReport | BenchReports, title: str) -> Page:
    return page_of_several(report, title) if isinstance(report, BenchReports) else page_of(report, title)


def _prices(path: Path | None) -> PriceBook:
    if path is None:
        return SHIPPED
    try:
        return PriceBook(parse_price_list(path.read_bytes(), str(path)))
    except OSError as error:
        raise ConfigError(f"--prices {path}: cannot be read: {error.strerror}") from None


def argument_parser() -> argparse.ArgumentParser:
    """Of the command's arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folders", metavar="FOLDER", type=Path, nargs="+", help="of results; several stand side by side"
    )
    parser.add_argument("--format", choices=("html", "md", "json"), default="html")
    parser.add_argument("--output", type=Path, help="default: FOLDER/report.html for html, else standard output")
    parser.add_argument("--earlier", type=Path, action="append", default=[], help="folder of earlier results")
    parser.add_argument("--prices", type=Path, help="prices.json of `convoy prices refresh`")
    parser.add_argument("--title", default="Benchmark")
    return parser


if __name__ == "__main__":
    try:
        main(argument_parser().parse_args())
    except (ResultUnreadableError, ConfigError) as error:
        print(f"generate_report: {error}", file=sys.stderr)
        sys.exit(2)
