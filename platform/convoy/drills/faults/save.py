"""Drills in which a worker is killed while it has part of a checkpoint in its hands."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

from convoy.checkpoint.format import file_name, part_record_name
from convoy.drills.checks import prune_and_find_orphans
from convoy.drills.fault import INJECT_AFTER, Expectation, Fault, GangProgress
from convoy.drills.gang import DrillError, DrillGang
from convoy.drills.observe import Observation
from convoy.gang.workers.board import Board, Phase
from convoy.storage import Store

MAX_DELAY_SECONDS = 0.6
"""From the begin of a part to the kill; writing it takes seconds."""

LOOK_SECONDS = 0.002
"""Between two looks for a moment that passes soon."""

MOMENT_SECONDS = 60.0
"""For that moment to come."""

MAX_TRIES = 5
"""To meet it."""

BEFORE_RESTORE: frozenset[Phase] = frozenset({"start", "connect", "build"})


class _CheckpointKill(Fault):
    """A worker is killed, any of them."""

    target_detected = 0.3
    target_recovered = 2.5
    _store: Store | None = None

    @cached_property
    def victim(self) -> int:
        """Its rank."""
        return self.random.randrange(self.size.ranks)

    def own_problems(self, trial: Observation) -> list[str]:
        return [] if self._store is None else prune_and_find_orphans(self._store)


class KillDuringSave(_CheckpointKill):
    """What it has not written keeps the save from being committed: what the others have written is of no use."""

    name = "kill-during-save"
    summary = "SIGKILL to a worker while its part of a checkpoint is being written"
    _cut_short = False

    def overrides(self) -> Sequence[str]:
        return ("checkpoint.write_mb_per_second=4",)  # so that a save takes seconds

    def inject(self, gang: DrillGang) -> float:
        self._store, worker = gang.store, gang.await_worker_pid(self.victim)
        for delay in (0.0, self.random.uniform(0.0, MAX_DELAY_SECONDS)):
            time.sleep(delay)
            writing = partial(is_writing, gang.store, self.victim)
            gang.wait_for("a part that is being written", writing, MOMENT_SECONDS, LOOK_SECONDS)
        at = time.time()
        os.kill(worker, signal.SIGKILL)
        self._cut_short = is_writing(gang.store, self.victim)
        return at

    def expected(self) -> Expectation:
        node = self.size.node_of(self.victim)
        return Expectation(way="in place", causes=frozenset({"exited"}), node=node, rank=self.victim)

    def own_problems(self, trial: Observation) -> list[str]:
        missed = "the worker was killed after it had written its part"
        return [*([] if self._cut_short else [missed]), *super().own_problems(trial)]


class KillDuringRestore(_CheckpointKill):
    """The generation that takes the place of one whose worker was killed loses a worker before its first step."""

    name = "kill-during-restore"
    summary = "SIGKILL to a worker, and to one of the workers after it while that reads the checkpoint"
    repeated = True
    target_recovered = 5.0
    _first = 0
    """Generation of the first kill."""
    _newest = 0
    """Generation of the last one."""
    _killed_in: Sequence[str] = ()
    """Phase of each further victim: the moment may be missed, and the next generation gives another."""

    @cached_property
    def first_victim(self) -> int:
        """Rank that is killed while it trains."""
        return self.random.randrange(self.size.ranks)

    def should_inject(self, progress: GangProgress) -> bool:
        if not progress.injected:
            self._first = self._newest = progress.generation
            return progress.has_steps_and_commit(INJECT_AFTER)
        if "restore" in self._killed_in or len(self._killed_in) == MAX_TRIES or progress.generation <= self._newest:
            return False
        self._newest = progress.generation
        return True

    def inject(self, gang: DrillGang) -> float:
        if not gang.injected:
            self._store = gang.store
            at = time.time()
            os.kill(gang.await_worker_pid(self.first_victim), signal.SIGKILL)
            return at
        began, agent = time.monotonic(), gang.agent_pid(self.size.node_of(self.victim))
        worker, local = gang.await_worker_pid(self.victim), self.victim % self.size.nproc

        def has_reached_restore() -> bool:
            # Opened anew each time: there may be none yet, or the last generation's, whose workers are dead.
            try:
                with contextlib.closing(open_agent_board(agent, self.size.nproc)) as board:
                    mark = board.read(local)
            except DrillError:
                return False
            return mark.phase == "restore" or (mark.phase not in BEFORE_RESTORE and mark.at > began)

        gang.wait_for("a worker that restores", has_reached_restore, MOMENT_SECONDS, LOOK_SECONDS)
        with contextlib.closing(open_agent_board(agent, self.size.nproc)) as board:
            at = time.time()
            os.kill(worker, signal.SIGKILL)
            self._killed_in = (*self._killed_in, board.read(local).phase)
        return at

    def expected(self) -> Expectation:
        return Expectation(way="in place", causes=frozenset({"exited"}), generations=self._expected_generations)

    def own_problems(self, trial: Observation) -> list[str]:
        wrong, expected = [], self._expected_generations
        if "restore" not in self._killed_in:
            wrong.append(f"workers were killed in their phases {self._killed_in}, and none while it restored")
        if (len(trial.results), trial.history.newest) != (1, expected):
            wrong.append(f"{len(trial.results)} attempts and {trial.history.newest} generations, not 1 and {expected}")
        return [*wrong, *super().own_problems(trial)]

    @property
    def _expected_generations(self) -> int:
        """In all: one more for each kill."""
        return self._first + 1 + len(self._killed_in)


def is_writing(store: Store, writer: int) -> bool:
    """Whether a writer has begun its part of a save in this store, and not ended it."""
    begun, ended = "/" + file_name(writer, 0), "/" + part_record_name(writer)
    there = store.sizes("shards/")
    return any(name.endswith(begun) and name.removesuffix(begun) + ended not in there for name in there)


def open_agent_board(agent_pid: int, slots: int) -> Board:
    """The progress board of an agent's workers. Raises DrillError if it has none now."""
    for file in Path(f"/proc/{agent_pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if "/memfd:convoy-board" in str(file.readlink()):
                return Board(os.open(file, os.O_RDWR | os.O_CLOEXEC), slots)
    raise DrillError(f"the agent {agent_pid} has no progress board")
