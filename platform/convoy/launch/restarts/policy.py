"""Whether a job's flow is started once more, decided by how its runs ended. Pure: chance is passed in."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from convoy.gang.diagnosis.verdict import REPEATS, repeats
from convoy.job.events.types import FailureDetected

DONE, FAILED, REFUSED, STOPPED = 0, 1, 2, 3
"""Exit codes of `convoy run`; ended by a signal, it is 128 and the signal's number."""

FRUITLESS_RUNS = 10
"""After so many failed runs in a row that brought the job no further, a person should look."""

How = Literal["finished", "stopped", "drained", "preempted", "waited", "outage", "failed", "refused"]
"""Finished; stopped by all ranks' agreement; drained by a person; preempted by a notice; ended because the gang never
got its nodes, or because the store was out of reach; failed; refused before it began."""


@dataclass(frozen=True)
class Ended:
    """How one run of the flow ended, as far as is known."""

    how: How
    code: int
    """Exit code of the flow's process."""
    run: str | None = None
    """Metaflow pathspec; None: it was never made."""
    step: int = 0
    """How far the job is: of the newest checkpoint, or the last step that was done."""
    message: str = ""
    """Why, in plain words; its first line says it."""
    causes: tuple[FailureDetected, ...] = ()
    """First causes of the run's generations, oldest first."""
    failed_step: str = ""
    """Of the flow, where Metaflow knows one."""
    lasting: bool = False
    """Another run would fail in the same way."""


@dataclass(frozen=True)
class Limits:
    """How long, and how often."""

    pause_seconds: float = 10.0
    """Before the flow is started again; doubled for each run in a row that brought the job no further."""
    longest_pause_seconds: float = 600.0
    most_runs: int | None = None


@dataclass(frozen=True)
class Again:
    """Start the flow once more, after a pause."""

    pause_seconds: float


@dataclass(frozen=True)
class Over:
    """Nothing more is started."""

    code: int
    why: str = ""
    """Where the last run's end alone does not say."""


def decide(history: Sequence[Ended], limits: Limits, chance: float = 0.5) -> Again | Over:
    """What follows from how the runs ended, oldest first.

    chance: from 0 to 1, spreads the pause by a quarter to both sides: of two gangs that take each other's machines one
    comes first.
    """
    newest = history[-1]
    match newest.how:
        case "finished":
            return Over(DONE)
        case "stopped" | "drained":
            return Over(STOPPED)
        case "refused" if len(history) == 1:
            return Over(newest.code)
    if newest.lasting:
        return Over(FAILED, "another run would fail in the same way")
    if same_failures(history) >= REPEATS:
        return Over(FAILED, f"the same failure, {REPEATS} times, is not tried again")
    if fruitless(history) >= FRUITLESS_RUNS:
        return Over(FAILED, f"{FRUITLESS_RUNS} failed runs in a row brought the job no further")
    if limits.most_runs is not None and len(history) >= limits.most_runs:
        return Over(FAILED, f"the job was given {limits.most_runs} run{'s' if limits.most_runs > 1 else ''}")
    doubled = limits.pause_seconds * 2.0 ** min(idle(history), 32)
    return Again(min(doubled, limits.longest_pause_seconds) * (0.75 + chance / 2))


def same_failures(history: Sequence[Ended]) -> int:
    """How often the newest failure was seen; 0 for what is no fault of the program.

    A worker's counts wherever it was seen before. What fails outside the gang counts while it comes in a row.
    """
    newest = history[-1]
    if newest.how != "failed":
        return 0
    if newest.causes:
        *earlier, last = [cause for ended in history for cause in ended.causes]
        return repeats(earlier, last)
    return _in_a_row(_signature(ended) == _signature(newest) for ended in reversed(history))


def fruitless(history: Sequence[Ended]) -> int:
    """How many of the newest runs in a row failed and brought the job no further; preemptions neither count nor end
    the row."""
    tried = [progressed for ended, progressed in _progress(history) if ended.how != "preempted" or progressed]
    return _in_a_row(not progressed for progressed in reversed(tried))


def idle(history: Sequence[Ended]) -> int:
    """How many of the newest runs in a row brought the job no further."""
    return _in_a_row(not progressed for _, progressed in reversed(_progress(history)))


def _progress(history: Sequence[Ended]) -> list[tuple[Ended, bool]]:
    """Each run, and whether the job came further by it than it ever was."""
    furthest, runs = 0, []
    for ended in history:
        runs.append((ended, ended.step > furthest))
        furthest = max(furthest, ended.step)
    return runs


def _in_a_row(holds: Iterable[bool]) -> int:
    count = 0
    for each in holds:
        if not each:
            break
        count += 1
    return count


def _signature(ended: Ended) -> tuple[object, ...]:
    """Numbers in a message may differ, and so may a run's name."""
    return ended.how, ended.failed_step, ended.step, re.sub(r"0x[0-9a-f]+|\d+", "#", ended.message)
