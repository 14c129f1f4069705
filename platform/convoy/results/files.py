"""A folder of results: a JSON file for each case."""

import os
import re
from pathlib import Path

from pydantic import ValidationError

from convoy.results.case import SCHEMA, Case


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
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ResultUnreadableError(f"{path}: {where}: {first['msg']}") from None
    if case.schema_version > SCHEMA:
        raise ResultUnreadableError(f"{path}: schema_version = {case.schema_version}: newer than {SCHEMA}; update")
    return case


def read_cases(folder: Path) -> list[Case]:
    """All of a folder, in the order of their keys. Raises ResultUnreadableError, also for a folder without any, and for
    two files of one case."""
    found: dict[str, tuple[Path, Case]] = {}
    for path in sorted(folder.glob("*.json")):
        case = read_case(path)
        if case.key in found:
            raise ResultUnreadableError(f"{path}: the same case is in {found[case.key][0].name}; remove one of them")
        found[case.key] = path, case
    if not found:
        raise ResultUnreadableError(f"{folder}: no results (*.json)")
    return [found[key][1] for key in sorted(found)]


def file_name(key: str) -> str:
    """The key with signs that every file system takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", key)
