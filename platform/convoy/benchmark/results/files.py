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
    """Write it, whole or not at all, and give its path. The folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_name(case.key)}.json"
    beside = path.with_suffix(f".{os.getpid()}.new")
    beside.write_text(case.model_dump_json(indent=1) + "\n")
    beside.replace(path)
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
    """All of a folder, in the order of their keys, whatever the files are called. A flow's folder also has what an
    attempt could not measure: of such a case the one that a later attempt measured counts, or else the newest.

    Raises ResultUnreadableError, also for a folder without any, and for a case that was measured before another file's,
    as no attempt of one run does: its figure would be one of old.
    """
    found: dict[str, tuple[Path, Case]] = {}
    for path in sorted(folder.glob("*.json")):
        case = read_case(path)
        beside, other = found.get(case.key, (path, case))
        earlier = min(case, other, key=lambda each: each.provenance.measured)
        if beside != path and earlier.status == "measured":
            what = "remove one of them, or give each run a folder of its own"
            raise ResultUnreadableError(f"{path}: the same case is in {beside.name}; {what}")
        if standing(case) >= standing(other):
            found[case.key] = path, case
    if not found:
        raise ResultUnreadableError(f"{folder}: no results (*.json)")
    return [found[key][1] for key in sorted(found)]


def standing(case: Case) -> tuple[bool, datetime]:
    """By which one of several of a key is kept: the highest."""
    return case.status == "measured", case.provenance.measured


def file_name(key: str) -> str:
    """The key with signs that every file system takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", key)
