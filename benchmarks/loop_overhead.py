"""What our training step costs over a bare hand-written FSDP2 loop of the same model.

    python benchmarks/loop_overhead.py [--pairs 40] [--steps 5] [--out benchmarks/results/loop_overhead.json]

Two ranks over gloo (or NCCL where there are two GPUs). In each rank both loops exist side by side, with the same
model, data, precision, sharding and fused AdamW. Blocks of `--steps` steps alternate between them inside one process
group, and which of a pair goes first alternates too. The bare loop is what one would write by hand: forward,
backward, clip, step, zero_grad, read the loss. Ours is `one_step` and `log_step` of `convoy.training.loop`, with
prefetched data, the exchange of decisions, the skip of non-finite steps, the clock and the event log.

Judged by CPU seconds per step over both ranks (all threads); wall seconds are printed beside them. Intervals are 95 %
bootstrap intervals of the ratio of means over pairs.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from measured import provenance, ratio
from torch import nn
from torch.nn.utils import clip_grad_norm_

import gang  # first of all: it sets how many threads a rank has
from convoy.config.loader import read_overrides, read_run, resolve
from convoy.config.run import RunConfig
from convoy.gang.task import Assignment
from convoy.training.batches import Data
from convoy.training.build import Trained, build_trained
from convoy.training.optimizer import learning_rate, set_learning_rate
from convoy.training.process_groups import Ranks
from convoy.training.step import Batch
from gang import RANKS, Block

WARMUP_BLOCKS = 2


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="convoy-overhead-") as root:
        config = resolve(
            read_run(""),
            read_overrides(
                f"root={root} data.corpus.kind=synthetic data.corpus.vocab_size=4096 train.steps=100000"
                f" train.global_batch={options.global_batch} optimizer.lr=1e-4 train.matmul_peak_seconds=0"
                " train.param_dtype=bf16"
            ),
        )
        body = partial(blocks_of_rank, pairs=options.pairs, steps=options.steps)
        pairs = gang.of_gang(gang.on_gang(config, body))
    result = summarise(pairs)
    record = {**provenance(), "command": " ".join(sys.argv), "options": vars(options), **result}
    print(json.dumps(result, indent=2))
    cpu = result["cpu_ratio"]
    print(f"CPU seconds per step, ours / bare: {cpu['ratio']:.4f}, 95 % interval {cpu['low']:.4f} to {cpu['high']:.4f}")
    wall = result["wall_ratio"]
    print(f"wall, bare / ours: {wall['ratio']:.4f}, 95 % interval {wall['low']:.4f} to {wall['high']:.4f}")
    if options.out:
        Path(options.out).write_text(json.dumps(record, indent=2) + "\n")
    return 0 if cpu["ratio"] <= 1.02 and wall["high"] >= 0.98 else 1


def summarise(pairs: Sequence[tuple[Block, Block]]) -> dict[str, Any]:
    """pairs: (ours, bare) blocks, summed over ranks for CPU. Ratios of means, with bootstrap intervals over pairs."""
    cpu = ratio([(ours.cpu_seconds, bare.cpu_seconds) for ours, bare in pairs])
    wall = ratio([(bare.wall_seconds, ours.wall_seconds) for ours, bare in pairs])
    return {
        "pairs": len(pairs),
        "cpu_seconds_per_step": {
            "ours": statistics.median(ours.cpu_seconds for ours, _ in pairs),
            "bare": statistics.median(bare.cpu_seconds for _, bare in pairs),
        },
        "wall_seconds_per_step": {
            "ours": statistics.median(ours.wall_seconds for ours, _ in pairs),
            "bare": statistics.median(bare.wall_seconds for _, bare in pairs),
        },
        "cpu_ratio": cpu,
        "wall_ratio": wall,
        "raw": [{"ours": asdict(ours), "bare": asdict(bare)} for ours, bare in pairs],
    }


def blocks_of_rank(assignment: Assignment, ranks: Ranks, data: Data, *, pairs: int, steps: int) -> list[Any]:
    """Pairs of blocks, ours and bare."""
    config = assignment.config
    with data.steps_from(0) as ours_batches, data.steps_from(0) as bare_batches:
        ours = partial(gang.one_step_of, gang.training(assignment, ranks, ours_batches))
        bare = bare_loop(build_trained(config, ranks), config, bare_batches)
        found = [gang.pair(ours, bare, steps, ranks, swapped=i % 2 == 1) for i in range(pairs + WARMUP_BLOCKS)]
    return found[WARMUP_BLOCKS:]


def bare_loop(trained: Trained, config: RunConfig, batches: Any) -> Callable[[], None]:
    """One step as one would write it by hand: the global token count is known, nothing is agreed or logged."""
    model: nn.Module = trained.module
    parameters = list(model.parameters())
    tokens = config.train.global_batch * config.data.sequence_length
    done = 0

    def step() -> None:
        nonlocal done
        micro_batches: Sequence[Batch] = next(batches)
        total = 0.0
        for batch in micro_batches:
            loss = model(batch.tokens_bs, batch.targets_bs) * (RANKS / tokens)
            loss.backward()
            total += float(loss.detach())
        clip_grad_norm_(parameters, config.train.clip_norm or float("inf"), foreach=True)
        set_learning_rate(trained.optimizer, learning_rate(done, config.train.steps, config.optimizer, config.schedule))
        trained.optimizer.step()
        trained.optimizer.zero_grad(set_to_none=True)
        done += 1

    return step


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="interleaved pairs of blocks")
    parser.add_argument("--steps", type=int, default=5, help="steps per block")
    parser.add_argument("--global-batch", type=int, default=16, help="sequences per step")
    parser.add_argument("--out", default=None, help="JSON file for the result")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
