"""What it costs to be watched: CPU seconds per step of the whole gang, with its agents' work and without.

    python benchmarks/supervision.py [--pairs 40] [--steps 5] [--out benchmarks/results/supervision.json]

Two nodes of one rank each, over gloo (or NCCL where there are two GPUs), on this host. In each rank the product's loop
exists twice, side by side, with a model each. One marks on its node's board every point that it passes, measures its
own time, and has the thread that tells that Python runs. The other does nothing of this. Blocks of `--steps` steps
alternate between them inside one process group, and which of a pair goes first alternates too.

Beside each rank runs its agent's work, a process that imports no torch (`supervisor.py`): it looks at the board and at
the worker's state each 0.1 s, exchanges heartbeats with the other agent each 0.2 s, and asks for notices each second.
It is stopped by a signal while the loop runs that is not watched.

CPU seconds per step are those of the ranks and of the agents, all threads; wall seconds are printed beside them.
Intervals are 95 % bootstrap intervals of the ratio of means over pairs.
"""

import argparse
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from measured import cpu_seconds, provenance, ratio
from supervisor import TOKEN

import gang  # first of all: it sets how many threads a rank has
from convoy.config.loader import read_overrides, read_run, resolve
from convoy.gang.task import Assignment
from convoy.gang.workers.board import Marker, Phase
from convoy.gang.workers.liveness import beating
from convoy.training.batches import Data
from convoy.training.loop import Training
from convoy.training.measure.clock import UnknownTime
from convoy.training.process_groups import Ranks
from gang import RANKS, Block

WARMUP_BLOCKS = 2
LIMIT = 1.02


class Unwatched(Marker):
    """Marks nothing."""

    def __init__(self) -> None:
        super().__init__(None, 0)

    def enter(self, phase: Phase, step: int | None = None) -> None:
        """Nobody looks."""

    def pass_point(self) -> None:
        """Nobody looks."""

    def advance(self) -> None:
        """Nobody looks."""

    def step_done(self, step: int, seconds: float, own_seconds: float) -> None:
        """Nobody looks."""


class Agent:
    """The process that does the agent's work for this rank; stopped but for `watching`."""

    def __init__(self, ranks: Ranks) -> None:
        """All ranks call it; they return when the agents are connected."""
        meeting: list[Any] = [secrets.token_hex(16), 0]
        dist.broadcast_object_list(meeting, group=ranks.control, group_src=0)
        if ranks.first:
            self._start(0, *meeting)
            meeting[1] = self._told["port"]
        dist.broadcast_object_list(meeting, group=ranks.control, group_src=0)
        if not ranks.first:
            self._start(ranks.place.rank, *meeting)
        self.board = str(self._told["board"])
        assert self._read()["formed"]
        dist.barrier(group=ranks.control)
        self._process.send_signal(signal.SIGSTOP)

    def _start(self, node: int, token: str, port: int) -> None:
        script = [sys.executable, str(Path(__file__).with_name("supervisor.py"))]
        arguments = [str(value) for value in (node, RANKS, os.getpid(), port)]
        environment = {**os.environ, TOKEN: token}
        self._process = subprocess.Popen([*script, *arguments], stdout=subprocess.PIPE, text=True, env=environment)
        self._told = self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._process.send_signal(signal.SIGCONT)
        yield
        self._process.send_signal(signal.SIGSTOP)

    def cpu_seconds(self) -> float:
        """So far."""
        return cpu_seconds(self._process.pid)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="convoy-supervision-") as root:
        overrides = f"root={root} train.steps=1000000 schedule.decay_steps=200 train.matmul_peak_seconds=0"
        overrides += " train.param_dtype=bf16"
        config = resolve(read_run(""), read_overrides(f"{overrides} {options.set}"))
        body = partial(blocks_of_rank, pairs=options.pairs, steps=options.steps)
        found = gang.on_gang(config, body)
    result = summarise(gang.of_gang([told["pairs"] for told in found]), [told["agent"] for told in found])
    record = {**provenance(), "command": " ".join(sys.argv), "options": {**vars(options), "out": str(options.out)}}
    print("\n".join(table(result)))
    if options.out is not None:
        options.out.write_text(json.dumps({**record, **result}, indent=1) + "\n")
    return 0 if result["cpu_ratio"]["ratio"] <= LIMIT else 1


def blocks_of_rank(assignment: Assignment, ranks: Ranks, data: Data, *, pairs: int, steps: int) -> dict[str, Any]:
    """Pairs of blocks, watched and not, each agent's CPU seconds counted to its rank; and those alone, by step."""
    never = assignment.config.checkpoint.model_copy(update={"every_steps": None})
    config = assignment.config.model_copy(update={"checkpoint": never})
    agent = Agent(ranks)
    try:
        with data.steps_from(0) as watched_batches, data.steps_from(0) as plain_batches:
            marker = Marker(agent.board, 0)
            watched = gang.training(assignment, ranks, watched_batches, config, marker)
            plain = gang.training(assignment, ranks, plain_batches, config, Unwatched(), UnknownTime())
            loops = begun(watched), begun(plain)
            found = [
                _pair(loops, steps, ranks, agent, marker, swapped=i % 2 == 1) for i in range(pairs + WARMUP_BLOCKS)
            ][WARMUP_BLOCKS:]
        for t in (watched, plain):
            t.saver.close(0.0)
    finally:
        agent.kill()
    return {"pairs": [(a, b) for a, b, _ in found], "agent": [alone for _, _, alone in found]}


def begun(t: Training) -> Callable[[], None]:
    """The loop of one step, the first of which is done with what follows on it."""
    step = partial(gang.one_step_of, t)
    step()
    t.updated = True
    t.after_first_step()
    return step


def _pair(
    loops: tuple[Callable[[], None], Callable[[], None]],
    steps: int,
    ranks: Ranks,
    agent: Agent,
    marker: Marker,
    *,
    swapped: bool,
) -> tuple[Block, Block, float]:
    plain = gang.block(loops[1], steps, ranks) if swapped else None
    watched, alone = _watched(loops[0], steps, ranks, agent, marker)
    return watched, plain or gang.block(loops[1], steps, ranks), alone


def _watched(step: Callable[[], None], steps: int, ranks: Ranks, agent: Agent, marker: Marker) -> tuple[Block, float]:
    """A block with the agent at work, and the agent's own CPU seconds per step."""
    before = agent.cpu_seconds()
    with agent.watching(), beating(marker):
        found = gang.block(step, steps, ranks)
    alone = (agent.cpu_seconds() - before) / steps
    return Block(found.cpu_seconds + alone, found.wall_seconds), alone


def summarise(pairs: Sequence[tuple[Block, Block]], agents: Sequence[Sequence[float]]) -> dict[str, Any]:
    """pairs: of the gang, watched and not. agents: of each node, CPU seconds per step by block."""
    return {
        "pairs": len(pairs),
        "cpu_seconds_per_step": {
            "watched": statistics.mean(watched.cpu_seconds for watched, _ in pairs),
            "plain": statistics.mean(plain.cpu_seconds for _, plain in pairs),
            "agents": sum(statistics.mean(agent) for agent in agents),
        },
        "wall_seconds_per_step": {
            "watched": statistics.median(watched.wall_seconds for watched, _ in pairs),
            "plain": statistics.median(plain.wall_seconds for _, plain in pairs),
        },
        "cpu_ratio": ratio([(watched.cpu_seconds, plain.cpu_seconds) for watched, plain in pairs]),
        "wall_ratio": ratio([(watched.wall_seconds, plain.wall_seconds) for watched, plain in pairs]),
        "raw": [{"watched": asdict(watched), "plain": asdict(plain)} for watched, plain in pairs],
    }


def table(result: dict[str, Any]) -> list[str]:
    """For the terminal."""
    cpu, wall, seconds = result["cpu_ratio"], result["wall_ratio"], result["cpu_seconds_per_step"]
    verdict = "met" if cpu["ratio"] <= LIMIT else "NOT MET"
    return [
        "CPU seconds per step: " + ", ".join(f"{name} {value:.4f}" for name, value in seconds.items()),
        f"CPU of ranks and agents, watched / plain: {_interval(cpu)}; at most {LIMIT}: {verdict}",
        f"wall, watched / plain: {_interval(wall)}",
    ]


def _interval(told: dict[str, float]) -> str:
    return f"{told['ratio']:.4f}, 95 % interval {told['low']:.4f} to {told['high']:.4f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="interleaved pairs of blocks")
    parser.add_argument("--steps", type=int, default=5, help="steps per block")
    parser.add_argument("--set", default="", help="key=value words laid on the default job")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for the result")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
