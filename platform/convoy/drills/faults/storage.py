"""Drills in which the job's root accepts no more writes. Training continues, and saves go to the next shared tier."""

import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from pathlib import Path

from convoy.drills.checks import incomplete_log_problems, next_tier_save_problems, stall_problems
from convoy.drills.fault import SAVE_EVERY, Expectation, Fault, GangProgress
from convoy.drills.gang import DrillGang
from convoy.drills.observe import Observation
from convoy.drills.testbed.mounts import Disk, always_full_disk, mounted_tmpfs
from convoy.job.events.registry import Event, StorageBad
from convoy.job.lineage import parse_commits
from convoy.storage import open_store

ROOM_MIB = 320
"""For ten checkpoints of the default model, and the data."""

MIN_SECONDS = 7.0
"""The fault lasts at least so long: longer than it may take to be seen."""

ELSEWHERE_SECONDS = 60.0
"""For the next save to come to the next tier."""


class _RootRefusesWrites(Fault):
    """The root, on a file system of its own, refuses writes until a save has come to the next tier."""

    endless = True
    target_detected = 3.0
    refused_since = 0.0
    """Wall time from which on it did, after the moments that it takes to have it so."""
    lasted = 0.0
    """Seconds for which it did."""

    @property
    @abstractmethod
    def mount_point(self) -> Path:
        """Where the file system is mounted."""

    @abstractmethod
    def refuse_writes(self) -> AbstractContextManager[object]:
        """While it is entered, the file system takes no writes."""

    @property
    def next_tier(self) -> Path:
        return self.folder / "next"

    def job_root(self) -> str:
        return str(self.mount_point / "root")

    def overrides(self) -> Sequence[str]:
        return (f"checkpoint.tiers=[{self.next_tier}]",)

    @cached_property
    def steps_from_save_to_fault(self) -> int:
        """Soon after a save, so that the root is known to fail when the next one is due; or so late that the next one
        begins there, and has to be reclaimed from it."""
        return self.random.choice((2, SAVE_EVERY - 1))

    def should_inject(self, progress: GangProgress) -> bool:
        return progress.has_steps_and_commit(SAVE_EVERY + self.steps_from_save_to_fault)

    def inject(self, gang: DrillGang) -> float:
        at = time.time()
        with self.refuse_writes():
            self.refused_since = time.time()
            gang.wait_for("a save on the next tier", lambda: self.next_tier_is_ahead(gang), ELSEWHERE_SECONDS)
            time.sleep(max(0.0, at + MIN_SECONDS - time.time()))
            self.lasted = time.time() - at
        return at

    def next_tier_is_ahead(self, gang: DrillGang) -> bool:
        """Whether the next tier has a commit that the root lacks."""
        there = parse_commits(open_store(str(self.next_tier / gang.job)).sizes("commits/"))
        return bool(set(there) - set(parse_commits(gang.store.sizes("commits/"))))

    def expected(self) -> Expectation:
        return Expectation(way="undisturbed")

    def is_detection(self, event: Event) -> bool:
        return isinstance(event, StorageBad)

    def own_problems(self, trial: Observation) -> list[str]:
        return [
            *next_tier_save_problems(trial, str(self.next_tier), self.refused_since),
            *stall_problems(trial, self.lasted),
            *incomplete_log_problems(trial),
        ]


class StorageFull(_RootRefusesWrites):
    """A tmpfs, on which whatever is given back is taken at once too."""

    name = "storage-full"
    summary = "the job's root has no room left, until the next save has come to another tier"

    @property
    def mount_point(self) -> Path:
        return self.folder / "memory"

    def setup(self, stack: ExitStack) -> None:
        stack.enter_context(mounted_tmpfs(self.mount_point, ROOM_MIB))

    def refuse_writes(self) -> AbstractContextManager[object]:
        return always_full_disk(self.mount_point)


class StorageHang(_RootRefusesWrites):
    """A frozen disk: who writes to it waits in the kernel, where no signal reaches."""

    name = "storage-hang"
    summary = "writes to the job's root hang, until the next save has come to another tier"

    @cached_property
    def disk(self) -> Disk:
        return Disk(self.folder, ROOM_MIB)

    @property
    def mount_point(self) -> Path:
        return self.disk.path

    def setup(self, stack: ExitStack) -> None:
        stack.enter_context(self.disk)
        with self.disk.frozen():  # where that cannot be, the drill is not run
            pass

    def refuse_writes(self) -> AbstractContextManager[object]:
        return self.disk.frozen()
