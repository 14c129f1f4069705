"""A folder of results: a JSON file for each case."""

import os
import re
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from convoy.benchmark.results.case import SCHEMA, Case
from convoy.config.errors import first_mistake


class ResultUnreadableError(Exception):
    """A file is no result; the text is one line with its path."""


def write_case(folder: Path, case: Case) -> Path:
    """Write it atomically, make the folder if need be, and return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_name(case.key)}.json"
    temporary = path.with_suffix(f".{os.getpid()}.new")
    temporary.write_text(case.model_dump_json(indent=1) + "\n")
    temporary.replace(path)
    return path


def read_case(path: Path) -> Case:
    """Raises ResultUnreadableError."""
    try:
        case = Case.model_validate_json(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ResultUnreadableError(f"{path}: cannot be read: {error}") from None
    except ValidationError as error:
        raise ResultUnreadableError(f"{path}: {first_mistake(error)}") from None
    if case.schema_version > SCHEMA:
        raise ResultUnreadableError(f"{path}: schema_version = {case.schema_version}: newer than {SCHEMA}; update")
    return case


def read_cases(folder: Path) -> list[Case]:
    """All of a folder, in the order of their keys, whatever the files are called. A flow's folder also has cases that
    an attempt could not measure: of such a case the one that a later attempt measured counts, or else the newest.

    Raises ResultUnreadableError, also for a folder without any, and for a case that two files measured, as no attempts
    of one run do: one of the two would be out of date.
    """
    newest: dict[str, tuple[Path, Case]] = {}
    for path in sorted(folder.glob("*.json")):
        case = read_case(path)
        other_path, other = newest.get(case.key, (path, case))
        earlier = min(case, other, key=lambda each: each.provenance.measured)
        if other_path != path and earlier.status == "measured":
            what = "remove one of them, or give each run a folder of its own"
            raise ResultUnreadableError(f"{path}: the same case is in {other_path.name}; {what}")
        if precedence(case) >= precedence(other):
            newest[case.key] = path, case
    if not newest:
        raise ResultUnreadableError(f"{folder}: no results (*.json)")
    return [newest[key][1] for key in sorted(newest)]


def precedence(case: Case) -> tuple[bool, datetime]:
    """Of several cases of a key the highest counts."""
    return case.status == "measured", case.provenance.measured


def file_name(key: str) -> str:
    """The key with characters that every file system allows."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", key)
