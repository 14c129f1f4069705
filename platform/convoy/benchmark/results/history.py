"""Results below a root: what a run has measured so far, and what earlier ones of the same fingerprint have."""

from collections.abc import Sequence

from pydantic import ValidationError

from convoy.benchmark.results.case import SCHEMA, Case
from convoy.benchmark.results.files import file_name, precedence
from convoy.benchmark.results.fingerprint import fingerprint
from convoy.storage import ObjectMissing, Store

PREFIX = "benchmarks/"


def keep(store: Store, run: str, case: Case) -> None:
    """Write a case. store: of the root. run: names the run that measured it; a case of the same run, key and
    fingerprint is replaced."""
    store.write(_name(run, case), case.model_dump_json().encode())


def saved_cases(store: Store, run: str) -> list[Case]:
    """All of a run, in the order of their keys: of each the newest that was measured, or else the newest."""
    cases: dict[str, Case] = {}
    for case in sorted(_read(store, sorted(store.sizes(f"{PREFIX}{file_name(run)}/"))), key=precedence):
        cases[case.key] = case
    return [cases[key] for key in sorted(cases)]


def earlier(store: Store, case: Case) -> list[Case]:
    """What was measured before `case` and may be compared with it, oldest first."""
    own = f".{fingerprint(case)}.json"  # after the key, which earlier versions wrote otherwise
    names = [name for name in store.sizes(PREFIX) if name.endswith(own)]
    cases = [each for each in _read(store, names) if each.status == "measured" and each.key == case.key]
    before = [each for each in cases if each.provenance.measured < case.provenance.measured]
    return sorted(before, key=lambda each: each.provenance.measured)


def _read(store: Store, names: Sequence[str]) -> list[Case]:
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


def _name(run: str, case: Case) -> str:
    return f"{PREFIX}{file_name(run)}/{file_name(case.key)}.{fingerprint(case)}.json"
