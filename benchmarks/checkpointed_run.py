"""What a checkpoint every 5 steps costs the default training run: CPU seconds of the training processes, and wall time.

    python benchmarks/checkpointed_run.py [--pairs 20] [--steps 10] [--out benchmarks/results/checkpointed_run.json]

Two ranks of one process group hold the default job's model and loop twice: one saves every 5 steps, with everything a
run does between saves (reading back, pruning), the other never. Blocks of `--steps` steps alternate between them, and
which of a pair goes first alternates too; 20 pairs of 10 steps are 200 steps of each. Steps are offset so that a block
ends two steps after its last save: what that costs the training processes falls into the block itself.

CPU seconds per step are those of the training processes, all threads, over both ranks; those of the processes that
write are printed beside them. Intervals are 95 % bootstrap intervals of the ratio of means over pairs.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from measured import cpu_seconds, descendants, provenance, ratio

import gang  # first of all: it sets how many threads a rank has
from convoy.config.loader import read_overrides, read_run, resolve
from convoy.gang.task import Assignment
from convoy.training.batches import Data
from convoy.training.loop import Training, save, save_is_due
from convoy.training.process_groups import Ranks
from gang import Block

EVERY_STEPS = 5
OFFSET = 2
"""Steps before the first block."""

WARMUP_BLOCKS = 2
LIMIT = 1.03


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="convoy-checkpointed-") as root:
        overrides = f"root={root} train.steps=1000000 schedule.decay_steps=200 train.matmul_peak_seconds=0"
        overrides += " train.param_dtype=bf16"
        config = resolve(read_run(""), read_overrides(f"{overrides} {options.set}"))
        body = partial(blocks_of_rank, pairs=options.pairs, steps=options.steps)
        of_ranks = gang.on_gang(config, body)
    result = summarise(gang.of_gang([rank["pairs"] for rank in of_ranks]), of_ranks, options.steps)
    record = {**provenance(), "command": " ".join(sys.argv), "options": {**vars(options), "out": str(options.out)}}
    print("\n".join(table(result)))
    if options.out is not None:
        options.out.write_text(json.dumps({**record, **result}, indent=1) + "\n")
    return 0 if result["cpu_ratio"]["ratio"] <= LIMIT else 1


def blocks_of_rank(assignment: Assignment, ranks: Ranks, data: Data, *, pairs: int, steps: int) -> dict[str, Any]:
    """Pairs of blocks, saving and not; what the writer took; and how many saves were committed."""
    never = assignment.config.checkpoint.model_copy(update={"every_steps": None})
    often = never.model_copy(update={"every_steps": EVERY_STEPS})
    with data.steps_from(0) as saving_batches, data.steps_from(0) as plain_batches:
        saving, plain = (
            gang.training(assignment, ranks, batches, assignment.config.model_copy(update={"checkpoint": checkpoint}))
            for checkpoint, batches in ((often, saving_batches), (never, plain_batches))
        )
        for t in (saving, plain):
            first_steps(t)
        loops = loop(saving), loop(plain)
        for i in range(WARMUP_BLOCKS):
            gang.pair(*loops, steps, ranks, swapped=i % 2 == 1)
        committed, writers = saving.saver.committed or 0, _writers()
        measured = [gang.pair(*loops, steps, ranks, swapped=i % 2 == 1) for i in range(pairs)]
        result = {
            "pairs": measured,
            "commits": ((saving.saver.committed or 0) - committed) // EVERY_STEPS,
            "writer_cpu_seconds": _writers() - writers,
        }
    saving.saver.close(0.0)
    plain.saver.close(0.0)
    return result


def first_steps(t: Training) -> None:
    """Up to where the blocks begin, with what the loop does after the first of them."""
    step = loop(t)
    step()
    t.after_first_step()
    for _ in range(OFFSET - 1):
        step()


def loop(t: Training) -> Callable[[], None]:
    """One step as `convoy.training.loop.train` takes it, but for evaluations."""

    def step() -> None:
        gang.one_step_of(t)
        if save_is_due(t):
            save(t, last=False)

    return step


def summarise(pairs: Sequence[tuple[Block, Block]], of_ranks: Sequence[dict[str, Any]], steps: int) -> dict[str, Any]:
    """pairs: of the gang, saving and not. of_ranks: what each rank returned."""
    done = len(pairs) * steps
    return {
        "steps_of_each": done,
        "commits": of_ranks[0]["commits"],
        "cpu_seconds_per_step": {
            "saving": statistics.mean(saving.cpu_seconds for saving, _ in pairs),
            "plain": statistics.mean(plain.cpu_seconds for _, plain in pairs),
            "writers": sum(rank["writer_cpu_seconds"] for rank in of_ranks) / done,
        },
        "wall_seconds_per_step": {
            "saving": statistics.median(saving.wall_seconds for saving, _ in pairs),
            "plain": statistics.median(plain.wall_seconds for _, plain in pairs),
        },
        "cpu_ratio": ratio([(saving.cpu_seconds, plain.cpu_seconds) for saving, plain in pairs]),
        "wall_ratio": ratio([(saving.wall_seconds, plain.wall_seconds) for saving, plain in pairs]),
        "raw": [{"saving": asdict(saving), "plain": asdict(plain)} for saving, plain in pairs],
    }


def table(result: dict[str, Any]) -> list[str]:
    """For the terminal."""
    cpu, wall, seconds = result["cpu_ratio"], result["wall_ratio"], result["cpu_seconds_per_step"]
    verdict = "met" if cpu["ratio"] <= LIMIT else "NOT MET"
    return [
        f"{result['steps_of_each']} steps of each, {result['commits']} checkpoints committed",
        "CPU seconds per step: " + ", ".join(f"{name} {value:.4f}" for name, value in seconds.items()),
        f"CPU of the training processes, saving / plain: {_interval(cpu)}; at most {LIMIT}: {verdict}",
        f"wall, saving / plain: {_interval(wall)}",
    ]


def _interval(spread: dict[str, float]) -> str:
    return f"{spread['ratio']:.4f}, 95 % interval {spread['low']:.4f} to {spread['high']:.4f}"


def _writers() -> float:
    return sum(cpu_seconds(pid) for pid in descendants(os.getpid()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="interleaved pairs of blocks")
    parser.add_argument("--steps", type=int, default=10, help="steps per block, a multiple of 5")
    parser.add_argument("--set", default="", help="key=value words laid on the default job")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for the result")
    options = parser.parse_args()
    if options.steps % EVERY_STEPS:
        parser.error(f"--steps {options.steps}: must be a multiple of {EVERY_STEPS}")
    return options


if __name__ == "__main__":
    sys.exit(main())
