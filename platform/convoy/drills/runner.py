"""Drills, one trial after the other, and the undisturbed runs that they are compared with."""

import itertools
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from convoy.config.json_text import canonical_json
from convoy.config.run import RunConfig
from convoy.display.formatting import work_progress
from convoy.drills.fault import DrillOptions, Fault, GangSize
from convoy.drills.faults.worker import NoFault
from convoy.drills.result import DrillResult, TrialResult, result_of
from convoy.drills.trial import State, run_trial, run_undisturbed
from convoy.gang.task import usable_cores

COMPUTING = ("model", "data", "train", "optimizer", "schedule", "parallel", "engine")
"""Sections of the configuration that the state after a step depends on."""


class DrillRunner:
    """Of one invocation."""

    def __init__(
        self,
        plan: DrillOptions,
        folder: Path,
        tell: Callable[[str], object] = lambda line: None,
        states: dict[str, State] | None = None,
        drills: int = 1,
    ) -> None:
        """folder: on this machine, there and empty. tell: receives its progress, a line each time. states: of
        undisturbed runs, which campaigns may share; None: this one has its own. drills: how many there will be."""
        self._plan = plan
        self._folder = folder
        self._tell = tell
        self._states = {} if states is None else states
        self._numbers = itertools.count()
        self._began, self._done, self._trials = time.monotonic(), 0, drills * plan.trials
        self.step_seconds: list[float] = []
        """Median step of each trial."""

    def run_drill(self, kind: type[Fault]) -> DrillResult:
        """All its trials."""
        rows = [self._run_trial(kind, number) for number in range(self._plan.trials)]
        return result_of(kind.name, rows)

    def _run_trial(self, kind: type[Fault], number: int) -> TrialResult:
        job = f"{kind.name}-{number}"
        so_far = work_progress(self._done, self._trials, time.monotonic() - self._began)
        self._tell(f"{kind.name} {number + 1}/{self._plan.trials} begins (trials: {so_far})")
        seconds = self._plan.seconds if self._plan.seconds is not None else kind.default_seconds
        fault = self._new_fault(kind, job, seconds if kind.lasting else None)
        result, observed = run_trial(fault, self._plan, job, self._jobs_folder, self._undisturbed_state)
        if observed is not None and observed.step_seconds is not None:
            self.step_seconds.append(observed.step_seconds)
        self._tell(f"{kind.name} {number + 1}/{self._plan.trials}: {in_words(result)}")
        self._delete_trial_files(fault, job)
        self._done += 1
        return result

    def _new_fault(self, kind: type[Fault], job: str, train_seconds: float | None = None) -> Fault:
        folder = self._folder / "trials" / job
        folder.mkdir(parents=True)
        random = Random(f"{self._plan.seed}/{job}")
        return kind(size=self._plan.size, random=random, folder=folder, seconds=train_seconds)

    def _undisturbed_state(self, config: RunConfig, size: GangSize) -> State:
        """Made once for each configuration that computes otherwise."""
        sections = config.model_dump(mode="json")
        key = canonical_json([{name: sections[name] for name in COMPUTING}, size.nodes, size.nproc])
        if key not in self._states:
            job = f"undisturbed-{next(self._numbers)}"
            self._tell(f"the undisturbed run of {config.train.steps:,} steps, with which the final state is compared")
            fault = self._new_fault(NoFault, job)
            here = config.model_copy(update={"root": str(self._jobs_folder)})
            self._states[key] = run_undisturbed(fault, self._plan, here, self._jobs_folder, job)
            self._delete_trial_files(fault, job)
        return self._states[key]

    def conditions(self) -> str:
        """What the figures are of, in one line."""
        size, words = self._plan.size, " ".join(self._plan.words)
        pace = f"{statistics.median(self.step_seconds):.3f} s" if self.step_seconds else "not known"
        return (
            f"gang: {size.nodes} nodes x {size.nproc} workers on one machine with {usable_cores()} cores; "
            f"default model{' with ' + words if words else ''}; median step {pace}"
        )

    @property
    def _jobs_folder(self) -> Path:
        return self._folder / "jobs"

    def _delete_trial_files(self, fault: Fault, job: str) -> None:
        if not self._plan.keep:
            shutil.rmtree(fault.folder, ignore_errors=True)
            shutil.rmtree(self._jobs_folder / job, ignore_errors=True)


def in_words(result: TrialResult) -> str:
    """A trial in one line."""
    if result.not_run is not None:
        return f"not run: this machine lacks {result.not_run}"
    figures = [
        f"{what} {seconds:.2f} s"
        for what, seconds in (
            ("detected", result.detected_s),
            ("recovered", result.recovered_s),
            ("beyond", result.beyond_s),
        )
        if seconds is not None
    ]
    return ", ".join(["ok" if result.ok else "NOT OK", *figures, *([result.reason] if result.reason else [])])
