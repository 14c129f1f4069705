"""How long a worker may show no progress before it counts as hung, given how long the same took before in this job.

Pure: moments are passed in, as seconds by `time.monotonic`.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from convoy.gang.workers.board import Mark, Phase

SLACK = 4.5
"""A hang is no sign of life for this many times the 99th percentile of a phase's durations. With the time to notice and
report it, a hang is reported within five times."""


@dataclass(frozen=True)
class PhaseLimits:
    """What a worker does in a phase, and how many seconds without a sign of life are not a hang."""

    place: str
    stage: int
    """Of a worker's life. Ranks that train are in the same stage, whose points they pass in the same order."""
    floor: float
    """However short the phase was before."""
    first: float
    """Before the job has shown how long the phase takes."""
    compiled: float | None = None
    """The same where the model is compiled, which every process repeats, in its first step and first evaluation."""


_STEP_PLACE = "step {next}"
_TRAINING = 6

LIMITS: dict[Phase, PhaseLimits] = {
    # It may have to import torch, perhaps over the network, though the one before it did not.
    "start": PhaseLimits("its start", 0, 120.0, 300.0),
    # The rendezvous has its own limit of 600 s, whose error says more.
    "connect": PhaseLimits("connecting to the others", 1, 150.0, 630.0),
    # It may copy the data to the node.
    "build": PhaseLimits("building the model", 2, 300.0, 3600.0),
    # It reads a whole checkpoint.
    "restore": PhaseLimits("restoring a checkpoint", 3, 1800.0, 7200.0),
    "leave": PhaseLimits("closing its log after a failure", 4, 60.0, 60.0),
    # A script that reports no progress cannot be judged.
    "script": PhaseLimits("its script", 5, math.inf, math.inf),
    "first_step": PhaseLimits(_STEP_PLACE, _TRAINING, 60.0, 600.0, compiled=3600.0),
    "step": PhaseLimits(_STEP_PLACE, _TRAINING, 2.7, 60.0, compiled=600.0),
    "evaluate": PhaseLimits("the evaluation after step {step}", _TRAINING, 30.0, 600.0, compiled=3600.0),
    "save": PhaseLimits("saving step {step}", _TRAINING, 60.0, 600.0),
    # Exporting a large model gives no sign of life at all.
    "finish": PhaseLimits("its last work", 7, 7200.0, 7200.0),
}

MIN_STEPS = 5
"""The length of a step is known after this many."""

LATE_SECONDS = 1.0
"""Most between two looks. If more has passed, this process itself was paused, and perhaps the workers with it."""

RECENT_SECONDS = 2.0
"""A beat that is older than this says nothing about now; a worker's heartbeat thread runs ten times a second."""

_MAX_TIMES = 1000
_PAUSES = 100


class RecentTimes:
    """How long something took, the newest thousand times."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        self._recent.append(seconds)
        insort(self._sorted, seconds)
        if len(self._recent) > _MAX_TIMES:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def __len__(self) -> int:
        return len(self._recent)

    def p99(self) -> float:
        """The nearest-rank 99th percentile; 0 if there are none."""
        return self._sorted[math.ceil(0.99 * len(self._sorted)) - 1] if self._sorted else 0.0


@dataclass
class _RankState:
    """One worker in this generation."""

    mark: Mark
    steps: int = 0
    left: set[Phase] = field(default_factory=set)
    first: list[float] = field(default_factory=list)
    """Times within the first step, which count once it is done: what precedes its long part, such as compiling, says
    nothing about that part."""


class HangDetector:
    """Thresholds for one node, or for a gang, from its own times. They outlive a generation."""

    def __init__(self, *, compiled: bool = False, script_seconds: float | None = None) -> None:
        """compiled: the model is compiled in the first step of each process. script_seconds: the workers run a script,
        whose steps may take so long: between two of them it may evaluate or save without reporting it."""
        self._script_seconds = script_seconds
        self._compiled = compiled
        self._times: dict[Phase, RecentTimes] = {phase: RecentTimes() for phase in LIMITS}
        self._ranks: dict[int, _RankState] = {}
        self._looked: float | None = None
        self._pauses: deque[tuple[float, float]] = deque(maxlen=_PAUSES)

    def begin_generation(self) -> None:
        """A new generation starts: new processes, which have yet to do everything for the first time."""
        self._ranks = {}
        self._looked = None

    def learn_from(self, marks: Mapping[int, Mark], now: float) -> None:
        """Learn from the workers' newest marks. Call it at least every `LATE_SECONDS`, before `hung`."""
        late = 0.0 if self._looked is None else now - self._looked - LATE_SECONDS
        self._looked = now
        if late > 0:
            self._pauses.append((now, late))
        for rank, mark in marks.items():
            state = self._ranks.setdefault(rank, _RankState(mark))
            if mark != state.mark:
                # Over a pause several phases may have passed, and the length of each is unknown.
                self._learn_durations(state, mark, timed=late <= 0)
                state.mark = mark

    def idle_seconds(self, mark: Mark, now: float) -> float:
        """For how long the worker has shown no progress, without the time in which this process itself was paused."""
        paused = sum(min(late, end - mark.at) for end, late in self._pauses if end > mark.at)
        return max(0.0, now - mark.at - paused)

    def limit_seconds(self, rank: int, phase: Phase) -> float:
        """Seconds for which this worker may show no progress in the phase."""
        own, has_history = LIMITS[phase], self._has_history(rank, phase)
        first = own.compiled if self._compiled and own.compiled is not None else own.first
        least = own.floor if has_history else first
        if phase == "step" and self._script_seconds is not None:
            least = self._script_seconds
        limit = max(least, SLACK * self._times[phase].p99())
        if phase == "step" and not has_history:
            limit = max(limit, SLACK * self._times["first_step"].p99())
        return limit

    def _has_history(self, rank: int, phase: Phase) -> bool:
        """Whether it is known how long the phase takes."""
        enough = len(self._times[phase]) >= (MIN_STEPS if phase == "step" else 1)
        if not (enough and self._compiled):
            return enough
        own = self._ranks.get(rank)
        if phase == "step":
            return own is not None and own.steps >= MIN_STEPS
        return phase != "evaluate" or (own is not None and phase in own.left)

    def _learn_durations(self, state: _RankState, mark: Mark, *, timed: bool) -> None:
        before = state.mark
        if mark.phase != before.phase:
            state.left.add(before.phase)
        if before.phase != "step":
            # From one sign of life to the next one noticed: at least as long as it took, and so is the limit.
            if timed and mark.at > before.at:
                if before.phase == "first_step":
                    state.first.append(mark.at - before.at)
                else:
                    self._times[before.phase].add(mark.at - before.at)
            if mark.phase == "step":
                for seconds in state.first:
                    self._times["first_step"].add(seconds)
                state.first.clear()
        elif mark.step > before.step:
            state.steps += mark.step - before.step
            self._times["step"].add(mark.step_seconds)


def rank_furthest_behind(marks: Mapping[int, Mark], now: float) -> int:
    """The rank that the others wait for, of all that still run: the one that is furthest behind.

    Of ranks at the same point all but one wait for that one. It is the one in which Python does not run, or else the
    one that does not wait in a collective, or else the one that has been there longest. A rank that failed is behind
    all that have done as many steps: they wait for it in vain. marks: at least one.
    """
    return min(marks, key=lambda r: (*progress_key(marks[r]), _liveness_level(marks[r], now), marks[r].at, r))


def find_hang(marks: Mapping[int, Mark], now: float, detector: HangDetector) -> tuple[int, str] | None:
    """The rank that hangs, if the gang does, and what hangs in words.

    A gang hangs when none of its ranks makes progress, for longer than the one that they wait for may take. So ranks
    do not hang while they wait for one that may take its time, nor when that one resumes before they do. marks: the
    newest ones, of all ranks that still run.
    """
    if not marks:
        return None
    first = rank_furthest_behind(marks, now)
    mark, limit = marks[first], detector.limit_seconds(first, marks[first].phase)
    if min(detector.idle_seconds(each, now) for each in marks.values()) <= limit:
        return None
    place = LIMITS[mark.phase].place.format(step=mark.step, next=mark.step + 1)
    age = detector.idle_seconds(mark, now)
    return first, f"rank {first} has shown no progress in {place} for {age:.1f} s; the limit is {limit:.3g} s"


def progress_key(mark: Mark) -> tuple[int, int, int]:
    """How far a rank has come: steps done, stage, points passed since."""
    return mark.step, LIMITS[mark.phase].stage, mark.count


def _liveness_level(mark: Mark, now: float) -> int:
    """0: Python does not run there, or that is unknown; 1: it runs; 2: it runs, and waits for other ranks."""
    if now - mark.beat_at > RECENT_SECONDS:
        return 0
    return 2 if mark.waiting_at >= mark.at and now - mark.waiting_at <= RECENT_SECONDS else 1
