"""Each record, by its file name below `recorded/`. All that is asked of the product's modules is in `convoy` below."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

from click.testing import CliRunner

from tests.flows.error_table import BEGIN, DOCUMENT, END
from tests.flows.forked import Forked
from tests.flows.places import FLOW, REPOSITORY, Place

HERE = Path(__file__).parent
RECORDED, JOBS = HERE / "recorded", HERE / "jobs"
BENCHMARK_FLOW = FLOW.with_name("benchmark_flow.py")

LOCAL = ("default", "cpu-smoke")
"""Configurations whose plan and dry run depend on the machine."""

SEARCH = ("gpt-7b", "--instances", "p4d,p5", "--nodes", "2,4,8")

Made = Callable[[], str]


def convoy(*words: str) -> str:
    """What `convoy WORDS` prints at 160 columns, and its exit code where that is not 0."""
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="convoy")
    environment = {"COLUMNS": "160", "TZ": "UTC", "CONVOY_ROOT": str(HERE / "no-jobs")}
    with patch.dict(os.environ, environment):
        time.tzset()
        done = CliRunner().invoke(command.load(), [*words])
    time.tzset()
    return _machine_free(done.output) + (f"exit code {done.exit_code}\n" if done.exit_code else "")


def records(forked: Forked, folder: Path) -> dict[str, Made]:
    """forked: runs the commands of flows. folder: to write to."""
    return {**_plans(), **_pages(), **_benchmark(), **_audits(), **_dry_runs(forked, folder), **_formats()}


def _plans() -> dict[str, Made]:
    found: dict[str, Made] = {}
    for name in _presets("train"):
        if name not in LOCAL:
            found[f"plan/{name}.txt"] = partial(convoy, "plan", name)
            found[f"plan/{name}.json"] = partial(convoy, "plan", name, "--json")
    found["plan/search.txt"] = partial(convoy, "plan", "search", *SEARCH)
    found["plan/search.json"] = partial(convoy, "plan", "search", *SEARCH, "--json")
    return found


def _pages() -> dict[str, Made]:
    """Of jobs that ran: their pages are a function of their logs."""
    found: dict[str, Made] = {}
    for job in sorted(each.name for each in JOBS.iterdir() if (each / "events").is_dir()):
        found[f"page/{job}.txt"] = partial(convoy, "show", job, "--root", str(JOBS))
        found[f"page/{job}.json"] = partial(convoy, "show", job, "--root", str(JOBS), "--json")
        found[f"page/{job}.tail.txt"] = partial(convoy, "tail", job, "--no-follow", "--root", str(JOBS))
    return found


def _benchmark() -> dict[str, Made]:
    """The report of the committed results."""

    def made(form: str) -> str:
        script, output = REPOSITORY / "benchmarks" / "generate_report.py", HERE / f"report.{form}"
        results = str(REPOSITORY / "benchmarks" / "results" / "benchmark")
        words = [str(script), results, "--format", form, "--output", str(output)]
        with patch.object(sys, "argv", words), contextlib.suppress(SystemExit):
            runpy.run_path(str(script), run_name="__main__")
        try:
            text = output.read_text()
        finally:
            output.unlink(missing_ok=True)
        return f"{hashlib.sha256(text.encode()).hexdigest()}\n" if form == "html" else text

    return {f"benchmark/report.{form}": partial(made, form) for form in ("md", "json", "html")}


def _audits() -> dict[str, Made]:
    pages = REPOSITORY / "tests" / "audit" / "pages"
    found: dict[str, Made] = {}
    for page in sorted(pages.rglob("*.yaml")):
        name = page.relative_to(pages).with_suffix("").as_posix().replace("/", "-")
        found[f"audit/{name}.txt"] = partial(convoy, "audit", str(page))
        found[f"audit/{name}.json"] = partial(convoy, "audit", str(page), "--json")
    return found


def _dry_runs(forked: Forked, folder: Path) -> dict[str, Made]:
    def made(kind: str, name: str) -> str:
        flow, option = (FLOW, "run") if kind == "train" else (BENCHMARK_FLOW, "bench")
        place = Place(folder / kind / name, {"COLUMNS": "160", "HOME": str(folder)})
        done = forked.run(place, flow, "--config", option, name, "run", "--dry-run")
        return _machine_free(
            f"{done.stdout}{done.stderr}exit code {done.returncode}\n".replace(str(folder), "{folder}")
        )

    return {
        f"dry-run/{kind}-{name}.txt": partial(made, kind, name)
        for kind in ("train", "bench")
        for name in _presets(kind)
        if name not in (*LOCAL, "network", "sync-environments", "peers", "one-gpu")
    }


def _formats() -> dict[str, Made]:
    """Every error of docs/reference/errors.md, to which tests/flows/test_errors.py holds the commands, and jobs."""
    found: dict[str, Made] = {"errors.md": _errors}
    for job in sorted(each.name for each in JOBS.iterdir() if (each / "shards").is_dir()):
        found[f"format/{job}.txt"] = partial(_form, JOBS / job)
    return found


def _errors() -> str:
    return DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]


def _form(job: Path) -> str:
    return "".join(f"{line}\n" for line in form_of(job))


def form_of(job: Path) -> Iterator[str]:
    """The files of a job, in which a run's own names are left out, and the keys of each object."""
    seen: set[str] = set()
    for file in sorted(path for path in job.rglob("*") if path.is_file()):
        name = re.sub(r"[0-9a-f]{12,}", "HEX", file.relative_to(job).as_posix())
        texts = [file.read_text()] if file.suffix == ".json" else []
        texts += file.read_text().splitlines() if file.suffix == ".jsonl" else []
        for form in ["", *(f" {_keys(json.loads(text))}" for text in texts)]:
            if (line := re.sub(r"\d+", "N", name) + form) not in seen:
                seen.add(line)
                yield line


def _keys(value: object) -> object:
    """The shape of JSON data: keys and types, without values; of a list, its first element's."""
    if isinstance(value, dict):
        kind = value.get("kind")
        keys = {re.sub(r"\d+", "N", key): _keys(each) for key, each in sorted(value.items()) if key != "kind"}
        return keys | ({"kind": kind} if kind else {})
    if isinstance(value, list):
        return [_keys(value[0])] if value else []
    return type(value).__name__


def _presets(kind: str) -> list[str]:
    return sorted(path.stem for path in (REPOSITORY / "configs" / kind).glob("*.yaml"))


def _machine_free(text: str) -> str:
    """Without this clone's path, and without the spaces that fill up lines: they depend on how long that path is."""
    return re.sub(r" +$", "", text.replace(f"{REPOSITORY}/", ""), flags=re.MULTILINE)
