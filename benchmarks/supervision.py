"""The rank's side of `overhead.py supervision`: a loop that an agent watches, and one that marks nothing."""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from blocks import WARMUP_PAIRS, Block, RankResult, alternate, begun, block
from measured import cpu_seconds
from supervisor import TOKEN

import gang
from convoy.gang.task import Assignment
from convoy.gang.workers.board import Marker, Phase, heartbeat
from convoy.training.batches import RankData
from convoy.training.measure.clock import UnknownOwnTime
from convoy.training.process_groups import Ranks


def supervision_on_rank(assignment: Assignment, ranks: Ranks, data: RankData, *, pairs: int, steps: int) -> RankResult:
    """Blocks of our loop, watched and not."""
    agent = Agent(ranks)
    try:
        with data.prefetch_from(0) as watched_batches, data.prefetch_from(0) as plain_batches:
            marker = Marker(agent.board, 0)
            watched = gang.training(assignment, ranks, watched_batches, marker)
            plain = gang.training(assignment, ranks, plain_batches, Unwatched(), UnknownOwnTime())
            watched_block = partial(agent.watched_block, begun(watched), steps, ranks, marker)
            blocks = alternate(watched_block, partial(block, begun(plain), steps, ranks), pairs)
        for t in (watched, plain):
            t.saver.close(0.0)
    finally:
        agent.kill()
    return RankResult(blocks, agent.seconds_per_step[WARMUP_PAIRS:])


class Unwatched(Marker):
    """Marks nothing."""

    def __init__(self) -> None:
        super().__init__(None, 0)

    def enter(self, phase: Phase, step: int | None = None) -> None:
        """Nobody looks."""

    def mark_shared_point(self) -> None:
        """Nobody looks."""

    def mark_own_progress(self) -> None:
        """Nobody looks."""

    def step_done(self, step: int, seconds: float, own_seconds: float) -> None:
        """Nobody looks."""


class Agent:
    """The process that does the agent's work for this rank; stopped except in `watched_block`."""

    def __init__(self, ranks: Ranks) -> None:
        """All ranks call it; they return when the agents are connected."""
        self.seconds_per_step: list[float] = []
        meeting: list[Any] = [secrets.token_hex(16), 0]
        dist.broadcast_object_list(meeting, group=ranks.control, group_src=0)
        if ranks.first:
            started = self._start(0, *meeting)
            meeting[1] = started["port"]
        dist.broadcast_object_list(meeting, group=ranks.control, group_src=0)
        if not ranks.first:
            started = self._start(ranks.place.rank, *meeting)
        self.board = str(started["board"])
        assert self._read()["formed"]
        dist.barrier(group=ranks.control)
        self._process.send_signal(signal.SIGSTOP)

    def _start(self, node: int, token: str, port: int) -> dict[str, Any]:
        script = [sys.executable, str(Path(__file__).with_name("supervisor.py"))]
        arguments = [str(value) for value in (node, gang.RANKS, os.getpid(), port)]
        environment = {**os.environ, TOKEN: token}
        self._process = subprocess.Popen([*script, *arguments], stdout=subprocess.PIPE, text=True, env=environment)
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line: dict[str, Any] = json.loads(self._process.stdout.readline())
        return line

    def watched_block(self, step: Callable[[], None], steps: int, ranks: Ranks, marker: Marker) -> Block:
        """A block with the agent at work, which counts."""
        before = cpu_seconds(self._process.pid)
        self._process.send_signal(signal.SIGCONT)
        with heartbeat(marker):
            own = block(step, steps, ranks)
        self._process.send_signal(signal.SIGSTOP)
        self.seconds_per_step.append((cpu_seconds(self._process.pid) - before) / steps)
        return Block(own.cpu_seconds + self.seconds_per_step[-1], own.wall_seconds)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
