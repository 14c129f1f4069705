"""python -m tests.golden [--write | --against REV]"""

import argparse
import difflib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.flows.forked import forking
from tests.flows.places import REPOSITORY
from tests.golden.records import RECORDED, records

SHOWN_LINES = 12
"""Of a difference."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare what Convoy makes with its recorded output.")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--write", action="store_true", help="record anew, in a commit that changes nothing else")
    ways.add_argument("--against", metavar="REV", help="name the records in which more than texts differs from REV's")
    arguments = parser.parse_args()
    if arguments.against:
        return _against(arguments.against)
    with tempfile.TemporaryDirectory() as folder, forking() as forked:
        made = {name: make() for name, make in records(forked, Path(folder)).items()}
    if arguments.write:
        for name, text in made.items():
            (RECORDED / name).parent.mkdir(parents=True, exist_ok=True)
            (RECORDED / name).write_text(text)
        return 0
    before = {path.relative_to(RECORDED).as_posix(): path.read_text() for path in RECORDED.rglob("*") if path.is_file()}
    equal = [name for name in made if before.get(name) == made[name]]
    for name in sorted({*made, *before} - {*equal}):
        _show(name, before.get(name, ""), made.get(name, ""))
    print(f"golden: {len(equal)} of {len({*made, *before})} equal")
    return 0 if len(equal) == len({*made, *before}) else 1


def _show(name: str, before: str, now: str) -> None:
    print(f"== {name}")
    lines = list(difflib.unified_diff(before.splitlines(), now.splitlines(), "recorded", "now", lineterm="", n=0))
    print(*lines[:SHOWN_LINES], *(["…"] if len(lines) > SHOWN_LINES else []), sep="\n")


def _against(revision: str) -> int:
    changed = 0
    for path in sorted(path for path in RECORDED.rglob("*") if path.is_file()):
        where = path.relative_to(REPOSITORY).as_posix()
        then = subprocess.run(["git", "show", f"{revision}:{where}"], capture_output=True, text=True, cwd=REPOSITORY)
        if then.returncode or figures(then.stdout, path.suffix) != figures(path.read_text(), path.suffix):
            changed += 1
            print(f"more than texts differs: {where}")
    print(f"golden: figures of {changed} records differ from {revision}'s")
    return 1 if changed else 0


def figures(text: str, suffix: str) -> object:
    """What a record holds besides words: of JSON the same data with empty texts, otherwise its numbers, in order."""
    if suffix == ".json":
        return _without_texts(json.loads(text))
    return re.findall(r"\d+(?:[.,]\d+)*", text)


def _without_texts(data: object) -> object:
    if isinstance(data, dict):
        return {key: _without_texts(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_without_texts(value) for value in data]
    return "" if isinstance(data, str) else data


if __name__ == "__main__":
    sys.exit(main())
