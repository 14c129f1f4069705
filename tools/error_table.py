#!/usr/bin/env python3
"""Write the table of docs/reference/errors.md: run each command of tests/flows/error_cases.py and note what it prints.

tools/error_table.py   takes about a minute
"""

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.flows.error_cases import CASES
from tests.flows.error_table import DOCUMENT, outcome_of, row
from tests.flows.places import Place

from generated import replaced

HEADER = "| what is wrong | command | line on stderr | exit code |\n|---|---|---|---|"


def rows(folder: Path) -> list[str]:
    """One line for each case; the jobs live below `folder`."""
    trained = Place(folder / "trained")
    trained.flow("run").check_returncode()
    job = f"TrainFlow-{trained.runs()[0]}"
    lines = []
    for i, case in enumerate(CASES):
        place = Place(folder / str(i))
        shutil.copytree(trained.root, place.root)
        lines.append(row(case, outcome_of(case, place, job)))
    return lines


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="convoy-errors-") as folder:
        table = "\n".join([HEADER, *rows(Path(folder))])
    DOCUMENT.write_text(replaced(DOCUMENT.read_text(), "table", "error_table.py", f"\n{table}\n"))


if __name__ == "__main__":
    main()
