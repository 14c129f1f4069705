"""What Convoy's training loop costs over a bare one, and what it costs the loop to be supervised and watched.

    python benchmarks/overhead.py loop [--pairs 40] [--steps 5] [--out benchmarks/results/loop_overhead.json]
    python benchmarks/overhead.py supervision [--pairs 40] [--steps 5] [--out benchmarks/results/supervision.json]
    python benchmarks/overhead.py watching [--pairs 40] [--steps 36] [--out benchmarks/results/watching.json]

Two ranks over gloo (or NCCL where there are two GPUs) hold two loops, with a model each. Blocks of `--steps` steps
alternate between them inside one process group, and which of a pair goes first alternates too.

loop: *bare* is what one would write by hand for the same model, data, precision, FSDP2 sharding and fused AdamW:
forward, backward, clip, step, zero_grad, read the loss. *ours* is `run_step` and `log_step` of `convoy.training.loop`,
with prefetched data, the exchange of decisions, the skip of non-finite steps, the clock and the event log.

supervision: both loops are the product's. The *watched* one marks every point that it passes on its node's board,
measures its own time, and runs the thread that reports that Python is alive; the *plain* one does nothing of this. Each
rank is a node, with its agent's work in a process next to it that imports no torch (`supervisor.py`): every 0.1 s it
looks at the board and at the worker's state, every 0.2 s it exchanges heartbeats with the other agent, and every second
it polls for notices. A signal stops it while the plain loop runs. Its CPU seconds count as those of its rank.

watching: both loops are the product's, with a job each. The *watched* one has all on that reads a job's log or its
nodes: each rank is a node, with a process next to it (`watcher.py`) that samples the hardware every 5 s and serves
OpenMetrics, which is scraped every 5 s. That of node 0 also feeds MLflow (a store in a folder), W&B (offline) and
TensorBoard, each of which has a process, and sends notifications to a webhook. All of them run the product's code and
follow the log that the watched loop writes, and the CPU seconds of all these processes count as their rank's. A signal
stops them while the plain loop runs. Their timers do not stop: what fell due meanwhile is done at the beginning of the
next watched block, so in blocks of 5 s, such as 36 steps take here, there are up to twice as many samples, scrapes and
calls of trackers as in a job. The report that the metrics are made of is counted as well, although a job without
metrics has its card made of the same one. 40 pairs take 8 minutes. To import the trackers' libraries and to begin their
runs comes before the pairs, and to send the rest and end them comes after; both are printed by themselves.

Judged by CPU seconds per step over both ranks, all threads; wall seconds are printed as well. Intervals are 95 %
bootstrap intervals of the ratio of means over pairs.
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
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from measured import at_least_fewest, cpu_seconds, option_parser, ratio, ratio_text, write_record
from supervisor import TOKEN
from torch.nn.utils import clip_grad_norm_
from watching import Watcher, surroundings

import gang  # first of all: it sets how many threads a rank has
from convoy.config.loader import read_overrides, read_run, resolve
from convoy.config.run import RunConfig
from convoy.gang.task import Assignment
from convoy.gang.workers.board import Marker, Phase, heartbeat
from convoy.training.batches import RankData
from convoy.training.engines.convoy import ConvoyEngine, build_convoy_engine
from convoy.training.loop import Training
from convoy.training.measure.clock import UnknownOwnTime
from convoy.training.optimizer import learning_rate, set_learning_rate
from convoy.training.process_groups import Ranks

WARMUP_PAIRS = 2
LIMIT = 1.02
"""Upper bound on the ratio of CPU seconds, unless a comparison has one of its own."""

JOB = "train.steps=1000000 schedule.decay_steps=200 train.matmul_peak_seconds=0 train.param_dtype=bf16"


@dataclass(frozen=True)
class Block:
    """Cost of one block of steps on one rank, or of the gang, per step."""

    cpu_seconds: float
    wall_seconds: float


@dataclass(frozen=True)
class RankResult:
    pairs: list[tuple[Block, Block]]
    agent: Sequence[float] = ()
    """CPU seconds per step of this rank's agent, by pair."""
    apart: Mapping[str, float] = field(default_factory=dict)
    """What is not of the pairs: figures that add up over ranks."""


@dataclass(frozen=True)
class Comparison:
    """names: of the two loops. wall: which of them is divided by which for the ratio of wall seconds."""

    names: tuple[str, str]
    wall: tuple[str, str]
    words: str
    body: Callable[..., RankResult]
    limit: float = LIMIT
    steps: int = 5
    """In a block."""
    is_watched: bool = False
    """The gang has `watching.surroundings`."""


def main() -> int:
    options = _options()
    compared = COMPARISONS[options.comparison]
    options.steps = options.steps or compared.steps
    with tempfile.TemporaryDirectory(prefix="convoy-overhead-") as root:
        config = resolve(read_run(""), read_overrides(f"root={root} {compared.words} {options.set}"))
        body = partial(compared.body, pairs=options.pairs, steps=options.steps)
        ranks, apart = (on_watched_gang if compared.is_watched else on_gang)(config, body)
    result = summarise(compared, of_gang([rank.pairs for rank in ranks]), [rank.agent for rank in ranks]) | apart
    print("\n".join(table(compared, result)))
    write_record(options.out, {"options": vars(options), **result})
    return 0 if result["cpu_ratio"]["ratio"] <= compared.limit else 1


def on_gang(config: RunConfig, body: gang.Body) -> tuple[list[RankResult], dict[str, Any]]:
    """The result of each rank, and what is not of the pairs: nothing."""
    return gang.on_gang(config, body), {}


def on_watched_gang(config: RunConfig, body: gang.Body) -> tuple[list[RankResult], dict[str, Any]]:
    """The result of each rank, and what is not of the pairs."""
    with surroundings(Path(str(config.root)), gang.RANKS) as around:
        ranks = gang.on_gang(config.model_copy(update=around.settings), body)
    apart = Counter[str]()
    for rank in ranks:
        apart.update(rank.apart)
    return ranks, {"apart": {**apart, "scrapes": around.scrapes, "messages": len(around.titles)}}


def loop_on_rank(assignment: Assignment, ranks: Ranks, data: RankData, *, pairs: int, steps: int) -> RankResult:
    """Blocks of our loop and of a bare one."""
    config = assignment.config
    with data.prefetch_from(0) as ours_batches, data.prefetch_from(0) as bare_batches:
        ours = partial(gang.one_step_of, gang.training(assignment, ranks, ours_batches))
        bare = bare_loop(build_convoy_engine(config, ranks), config, bare_batches)
        return RankResult(alternate(partial(block, ours, steps, ranks), partial(block, bare, steps, ranks), pairs))


def bare_loop(trained: ConvoyEngine, config: RunConfig, batches: Any) -> Callable[[], None]:
    """One step as one would write it by hand: the global token count is known, nothing is agreed or logged."""
    parameters = list(trained.module.parameters())
    tokens = config.train.global_batch * config.data.sequence_length
    done = 0

    def step() -> None:
        nonlocal done
        total = 0.0
        for batch in next(batches):
            loss = trained.module(*batch.inputs) * (gang.RANKS / tokens)
            loss.backward()
            total += float(loss.detach())
        clip_grad_norm_(parameters, config.train.clip_norm or float("inf"), foreach=True)
        set_learning_rate(trained.optimizer, learning_rate(done, config.train.steps, config.optimizer, config.schedule))
        trained.optimizer.step()
        trained.optimizer.zero_grad(set_to_none=True)
        done += 1

    return step


def supervision_on_rank(assignment: Assignment, ranks: Ranks, data: RankData, *, pairs: int, steps: int) -> RankResult:
    """Blocks of our loop, watched and not."""
    agent = Agent(ranks)
    try:
        with data.prefetch_from(0) as watched_batches, data.prefetch_from(0) as plain_batches:
            marker = Marker(agent.board, 0)
            watched = gang.training(assignment, ranks, watched_batches, marker)
            plain = gang.training(assignment, ranks, plain_batches, Unwatched(), UnknownOwnTime())
            watched_block = partial(agent.watched_block, _begun(watched), steps, ranks, marker)
            blocks = alternate(watched_block, partial(block, _begun(plain), steps, ranks), pairs)
        for t in (watched, plain):
            t.saver.close(0.0)
    finally:
        agent.kill()
    return RankResult(blocks, agent.seconds_per_step[WARMUP_PAIRS:])


def _begun(t: Training) -> Callable[[], None]:
    """The loop's step, of which the first one and what follows on it are done."""
    step = partial(gang.one_step_of, t)
    step()
    t.updated = True
    t.after_first_step()
    return step


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


def watching_on_rank(assignment: Assignment, ranks: Ranks, data: RankData, *, pairs: int, steps: int) -> RankResult:
    """Blocks of our loop in a job that is followed, and in one that is not."""
    uri = f"{assignment.root}/plain"
    unfollowed = assignment.model_copy(update={"job_uri": uri, "tiers": [uri]})
    with data.prefetch_from(0) as watched_batches, data.prefetch_from(0) as plain_batches:
        watched = gang.training(assignment, ranks, watched_batches)
        plain = gang.training(unfollowed, ranks, plain_batches)
        watched_step, plain_step = _begun(watched), _begun(plain)
        watched.events.flush()
        watcher = Watcher(assignment)
        try:
            dist.barrier(group=ranks.control)
            blocks = alternate(
                partial(_watched_block, watcher, watched_step, steps, ranks),
                partial(block, plain_step, steps, ranks),
                pairs,
            )
            watched.events.flush()
            dist.barrier(group=ranks.control)
            watcher.end()
        finally:
            watcher.kill()
        for t in (watched, plain):
            t.saver.close(0.0)
    apart = {
        "start_cpu_seconds": watcher.start_cpu_seconds,
        "end_cpu_seconds": watcher.end_cpu_seconds,
        "samples": watcher.samples,
    }
    return RankResult(blocks, [s / steps for s in watcher.seconds_in_blocks[WARMUP_PAIRS:]], apart)


def _watched_block(watcher: Watcher, step: Callable[[], None], steps: int, ranks: Ranks) -> Block:
    """A block with all that watches at work, which counts."""
    with watcher.at_work():
        own = block(step, steps, ranks)
    return Block(own.cpu_seconds + watcher.seconds_in_blocks[-1] / steps, own.wall_seconds)


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


COMPARISONS = {
    "loop": Comparison(
        ("ours", "bare"),
        ("bare", "ours"),
        f"{JOB} data.corpus.kind=synthetic data.corpus.vocab_size=4096 train.global_batch=16 optimizer.lr=1e-4",
        loop_on_rank,
    ),
    "supervision": Comparison(
        ("watched", "plain"), ("watched", "plain"), f"{JOB} checkpoint.every_steps=null", supervision_on_rank
    ),
    "watching": Comparison(
        ("watched", "plain"),
        ("watched", "plain"),
        f"{JOB} checkpoint.every_steps=null",
        watching_on_rank,
        limit=1.01,
        steps=36,
        is_watched=True,
    ),
}


def block(step: Callable[[], None], steps: int, ranks: Ranks) -> Block:
    """Cost of `steps` steps on this rank."""
    dist.barrier(group=ranks.control)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    if ranks.device.type == "cuda":
        torch.cuda.synchronize()
    return Block((time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps)


def alternate(first: Callable[[], Block], second: Callable[[], Block], pairs: int) -> list[tuple[Block, Block]]:
    """A block of each per pair, the second one before the first in every other pair, after some that warm up."""
    blocks = []
    for number in range(WARMUP_PAIRS + pairs):
        if number % 2:
            later = second()
            blocks.append((first(), later))
        else:
            blocks.append((first(), second()))
    return blocks[WARMUP_PAIRS:]


def of_gang(ranks: Sequence[Sequence[tuple[Block, Block]]]) -> list[tuple[Block, Block]]:
    """The gang's pairs: its CPU seconds are the sum over ranks, its wall seconds the slowest rank's."""

    def together(blocks: Sequence[Block]) -> Block:
        return Block(sum(b.cpu_seconds for b in blocks), max(b.wall_seconds for b in blocks))

    pairs = zip(*ranks, strict=True)
    return [(together([a for a, _ in blocks]), together([b for _, b in blocks])) for blocks in pairs]


def summarise(
    compared: Comparison, pairs: Sequence[tuple[Block, Block]], agents: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """pairs: of the gang. agents: CPU seconds per step of each node's agent, by pair; empty if there is none."""
    blocks = dict(zip(compared.names, zip(*pairs, strict=True), strict=True))
    cpu = {name: [b.cpu_seconds for b in own] for name, own in blocks.items()}
    wall = {name: [b.wall_seconds for b in own] for name, own in blocks.items()}
    agent = {"agents": sum(map(statistics.mean, agents))} if all(agents) else {}
    first, second = compared.names
    return {
        "pairs": len(pairs),
        "cpu_seconds_per_step": {name: statistics.mean(own) for name, own in cpu.items()} | agent,
        "wall_seconds_per_step": {name: statistics.median(own) for name, own in wall.items()},
        "cpu_ratio": ratio(list(zip(cpu[first], cpu[second], strict=True)), "mean"),
        "wall_ratio": ratio(list(zip(*(wall[name] for name in compared.wall), strict=True)), "mean"),
        "raw": [{first: asdict(a), second: asdict(b)} for a, b in pairs],
    }


def table(compared: Comparison, result: dict[str, Any]) -> list[str]:
    """For the terminal."""
    cpu, verdict = result["cpu_ratio"], "met" if result["cpu_ratio"]["ratio"] <= compared.limit else "NOT MET"
    seconds = (f"{name} {value:.4f}" for name, value in result["cpu_seconds_per_step"].items())
    apart = (f"{name.replace('_', ' ')} {value:.4g}" for name, value in result.get("apart", {}).items())
    return [
        f"CPU seconds per step: {', '.join(seconds)}",
        f"CPU, {' / '.join(compared.names)}: {ratio_text(cpu)}; at most {compared.limit}: {verdict}",
        f"wall, {' / '.join(compared.wall)}: {ratio_text(result['wall_ratio'])}",
        *([f"not of the pairs: {', '.join(apart)}"] if "apart" in result else []),
    ]


def _options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    parser.add_argument("comparison", choices=COMPARISONS)
    parser.add_argument("--pairs", type=at_least_fewest, default=40, help="interleaved pairs of blocks")
    parser.add_argument("--steps", type=int, help="steps per block; by default 5, and 36 for watching")
    parser.add_argument("--set", default="", help="key=value words laid on the job")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
