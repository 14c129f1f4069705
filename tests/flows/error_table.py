"""The table of docs/reference/errors.md: what each bad input's command prints. Written by tools/error_table.py."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from convoy.job.heartbeat import LiveMarker
from convoy.job.record import job_store
from tests.flows.error_cases import SMOKE, Case
from tests.flows.places import FLOW, REPOSITORY, Place, own_lines

DOCUMENT = REPOSITORY / "docs" / "reference" / "errors.md"
BEGIN = "<!-- table: written by tools/error_table.py, not by hand -->"
END = "<!-- end of table -->"


@dataclass(frozen=True)
class Outcome:
    """What became of one command."""

    text: str
    """What it printed; exactly one line, if all is well."""
    code: int
    runs: int
    """How many runs it created."""


def anew(place: Place, *words: str | Path) -> "subprocess.CompletedProcess[str]":
    """A flow's command, by an interpreter of its own."""
    return place.run(sys.executable, *words)


def outcome_of(
    case: Case, place: Place, job: str, run: Callable[..., "subprocess.CompletedProcess[str]"] = anew
) -> Outcome:
    """Run the case's command where `job` has trained 20 steps, by `run(place, flow, *words)`."""

    def filled(text: str) -> str:
        return text.replace("{here}", str(place.folder)).replace("{job}", job)

    for name, text in case.files.items():
        make_file(place.folder / name, filled(text))
    variables = {name: filled(value) for name, value in case.variables.items()}
    if "PYTHONPATH" in variables:
        variables["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
    place, before = Place(place.folder, variables), len(place.runs())
    with _running(place, job) if case.live else contextlib.nullcontext():
        typed = command(case).replace("--config run configs", f"--config run {REPOSITORY}/configs")
        done = run(place, FLOW, *(filled(word) for word in shlex.split(typed)[2:]))
    text = failure_text(done.stdout) if case.code == 1 else "\n".join(own_lines(done.stderr))
    return Outcome(_told(text, place, job), done.returncode, len(place.runs()) - before)


def command(case: Case) -> str:
    """The case's command as one types it in the repository's folder."""
    quote = "'" if '"' in case.overrides else '"'
    laid_on = f"--config-value set {quote}{case.overrides}{quote} " if case.overrides else ""
    words = f" {case.words}" if case.words else ""
    return f"python flows/train_flow.py --config run {case.config} {laid_on}run{words}"


def row(case: Case, outcome: Outcome) -> str:
    """The case's line of the table."""
    shown = command(case).replace(f"python flows/train_flow.py --config run {SMOKE}", "…")
    before = "".join(f"{name}={value} " for name, value in case.variables.items() if name.startswith("CUDA"))
    cells = (case.wrong, f"`{before}{_example(shown)}`", f"`{_example(outcome.text)}`", str(outcome.code))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def failure_text(log: str) -> str:
    """What a failed step says after the headline of its error, without Metaflow's stamps."""
    lines = [re.sub(r"^\S+ \S+ \[[^]]*\] ", "", line) for line in log.splitlines()]
    after = lines[lines.index("Convoy:") + 1 :] if "Convoy:" in lines else lines
    return "\n".join(after[: after.index("")] if "" in after else after)


def make_file(path: Path, text: str) -> None:
    """`-> target` makes a link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if text.startswith("-> "):
        path.symlink_to(text.removeprefix("-> "))
    else:
        path.write_text(text)


@contextlib.contextmanager
def _running(place: Place, job: str) -> Iterator[None]:
    with LiveMarker(job_store(str(place.root), job), "blue", "TrainFlow/7"):
        yield


def _told(text: str, place: Place, job: str) -> str:
    """The text without what differs from one machine to the next."""
    for found, name in ((str(place.folder), "{here}"), (job, "{job}"), (f"{REPOSITORY}/", "")):
        text = text.replace(found, name)
    text = re.sub(r"on \S+ \(pid \d+\)", "on my-host (pid 4711)", text)
    return re.sub(r"[\d.]+ GB are free", "120.00 GB are free", text)


def _example(text: str) -> str:
    return text.replace("{here}", "/home/me").replace("{job}", "my-job")
