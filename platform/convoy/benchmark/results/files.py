"""Where results are: in a folder, a JSON file for each case; below a root, those of this run and of earlier ones."""

import os
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from convoy.benchmark.results.case import SCHEMA, Case
from convoy.benchmark.results.fingerprint import fingerprint
from convoy.config.errors import ConfigError, first_mistake
from convoy.storage import ObjectMissing, Store


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


PREFIX = "benchmarks/"


def save_case(store: Store, run: str, case: Case) -> None:
    """Write a case. store: of the root. run: names the run that measured it; a case of the same run, key and
    fingerprint is replaced."""
    store.write(_object_name(run, case), case.model_dump_json().encode())


def read_saved_cases(store: Store, run: str) -> list[Case]:
    """All of a run, in the order of their keys: of each the newest that was measured, or else the newest."""
    cases: dict[str, Case] = {}
    for case in sorted(_read_readable(store, sorted(store.sizes(f"{PREFIX}{file_name(run)}/"))), key=precedence):
        cases[case.key] = case
    return [cases[key] for key in sorted(cases)]


def read_earlier_cases(store: Store, case: Case) -> list[Case]:
    """What was measured before `case` and may be compared with it, oldest first."""
    own = f".{fingerprint(case)}.json"  # after the key, which earlier versions wrote otherwise
    names = [name for name in store.sizes(PREFIX) if name.endswith(own)]
    cases = [each for each in _read_readable(store, names) if each.status == "measured" and each.key == case.key]
    before = [each for each in cases if each.provenance.measured < case.provenance.measured]
    return sorted(before, key=lambda each: each.provenance.measured)


def _read_readable(store: Store, names: Sequence[str]) -> list[Case]:
    """Those that can be read, of this version or an older one."""
    cases = []
    for name in names:
        try:
            case = Case.model_validate_json(store.read(name))
        except (ObjectMissing, ValidationError):
            continue
        if case.schema_version <= SCHEMA:
            cases.append(case)
    return cases


def _object_name(run: str, case: Case) -> str:
    return f"{PREFIX}{file_name(run)}/{file_name(case.key)}.{fingerprint(case)}.json"


def named_folders(folders: Sequence[Path]) -> dict[str, Path]:
    """By their last names, or where two have the same, by their paths. Raises ConfigError for one given twice."""
    folders = [folder.resolve() for folder in folders]
    for folder in folders:
        if folders.count(folder) > 1:
            raise ConfigError(f"{folder}: appears twice")
    last = [folder.name for folder in folders]
    return {folder.name if last.count(folder.name) == 1 else str(folder): folder for folder in folders}
