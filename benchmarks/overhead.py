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

watching: both kinds of blocks are of one loop, the product's. In *watched* ones all is on that reads a job's log or its
nodes: each rank is a node, with a process next to it (`watcher.py`) that samples the hardware every 5 s and serves
OpenMetrics, which is scraped every 5 s. That of node 0 also feeds MLflow (a store in a folder), W&B (offline) and
TensorBoard, each of which has a process, and sends notifications to a webhook. All of them run the product's code and
follow the log of the watched blocks, and the CPU seconds of all these processes count as their rank's. In *plain*
blocks, whose steps are logged elsewhere, a signal stops them. Their timers do not stop: what fell due meanwhile is done
at the beginning of the next watched block, so in blocks of 5 s, such as 36 steps take here, there are up to twice as
many samples, scrapes and calls of trackers as in a job. The job's metrics are served from the report that its card is
drawn from, which a job has without metrics too: here it is made once, before the pairs. 40 pairs take 8 minutes. To
import the trackers' libraries and to begin their runs comes before the pairs, and to send the rest and end them comes
after; both are printed by themselves.

Judged by CPU seconds per step over both ranks, all threads; wall seconds are printed as well. Intervals are 95 %
bootstrap intervals of the ratio of means over pairs.
"""

import argparse
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from blocks import Block, RankResult, alternate, block, of_gang
from measured import at_least_fewest, option_parser, ratio, ratio_text, write_record
from supervision import supervision_on_rank
from torch.nn.utils import clip_grad_norm_
from watching import surroundings, watching_on_rank

import gang  # first of all: it sets how many threads a rank has
from convoy.config.loader import read_overrides, read_run, resolve
from convoy.config.run import RunConfig
from convoy.gang.task import Assignment
from convoy.training.batches import RankData
from convoy.training.engines.convoy import ConvoyEngine, build_convoy_engine
from convoy.training.optimizer import learning_rate, set_learning_rate
from convoy.training.process_groups import Ranks

LIMIT = 1.02
"""Upper bound on the ratio of CPU seconds, unless a comparison has one of its own."""

JOB = "train.steps=1000000 schedule.decay_steps=200 train.matmul_peak_seconds=0 train.param_dtype=bf16"


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
