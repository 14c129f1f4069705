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
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from measured import provenance, ratio
from torch import nn
from torch.nn.utils import clip_grad_norm_

from convoy.checkpoint.commit import Progress
from convoy.config.load import read_overrides, read_run, resolve
from convoy.config.run import RunConfig
from convoy.data.manifest import fingerprint
from convoy.data.prepare import prepare
from convoy.events.log import EventWriter
from convoy.gang.assignment import Assignment, Place
from convoy.storage import open_store
from convoy.training.batches import Data
from convoy.training.clock import clock_for
from convoy.training.exchange import Exchange
from convoy.training.loop import Training, log_step, one_step
from convoy.training.measure import memory_peak
from convoy.training.model import Trained, build_trained
from convoy.training.optimizer import learning_rate, set_learning_rate
from convoy.training.ranks import Ranks, connect
from convoy.training.saver import Saver
from convoy.training.step import Batch, Stepper

RANKS = 2
WARMUP_BLOCKS = 2


@dataclass(frozen=True)
class Block:
    """Cost of one block of steps on one rank, per step."""

    cpu_seconds: float
    wall_seconds: float


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="convoy-overhead-") as root:
        config = resolve(
            read_run(""),
            read_overrides(
                f"root={root} data.corpus.kind=synthetic data.corpus.vocab_size=4096 train.steps=100000"
                f" train.global_batch={options.global_batch} optimizer.lr=1e-4 train.matmul_peak_seconds=0"
            ),
        )
        pairs = _measure(config, options.pairs, options.steps)
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


def _measure(config: RunConfig, pairs: int, steps: int) -> list[tuple[Block, Block]]:
    manifest = prepare(config.data, open_store(str(config.root)))
    context = multiprocessing.get_context("spawn")
    listener = socket.create_server(("127.0.0.1", 0))
    results: Any = context.SimpleQueue()
    port = listener.getsockname()[1]
    listener.close()
    arguments = (config, manifest.id, fingerprint(manifest, config.data), port, pairs, steps, results)
    workers = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(RANKS)]
    for worker in workers:
        worker.start()
    found = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    # CPU seconds of the gang are the sum over ranks; its wall seconds are the slowest rank's.
    return [(_gang([f[i][0] for f in found]), _gang([f[i][1] for f in found])) for i in range(pairs)]


def _gang(blocks: Sequence[Block]) -> Block:
    return Block(sum(b.cpu_seconds for b in blocks), max(b.wall_seconds for b in blocks))


def _rank(
    rank: int, config: RunConfig, data_id: str, data_print: str, port: int, pairs: int, steps: int, results: Any
) -> None:
    place = Place(
        rank=rank,
        local_rank=rank,
        node=0,
        nodes=1,
        nproc_per_node=RANKS,
        host_rank=rank,
        host_ranks=RANKS,
        threads=1,
    )
    assignment = Assignment(
        config=config,
        job="overhead",
        job_uri=f"{config.root}/overhead",
        root=str(config.root),
        data_id=data_id,
        fingerprint=data_print,
        generation=1,
        parent=None,
        place=place,
        master_host="127.0.0.1",
        master_port=port,
        agent_pid=os.getppid(),
        reason_path="/dev/null",
    )
    ranks = connect(assignment)
    data = Data(config, assignment.root, data_id, data_print, ranks)
    with data.steps_from(0) as ours_batches, data.steps_from(0) as bare_batches:
        ours = ours_loop(assignment, ranks, ours_batches)
        bare = bare_loop(build_trained(config, ranks), config, bare_batches)
        blocks = [_pair(ours, bare, steps, first_ours=i % 2 == 0, ranks=ranks) for i in range(pairs + WARMUP_BLOCKS)]
    results.put(blocks[WARMUP_BLOCKS:])
    dist.barrier()
    dist.destroy_process_group()


def ours_loop(assignment: Assignment, ranks: Ranks, batches: Any) -> Callable[[], None]:
    """One step of the product's loop, logging included."""
    config, trained = assignment.config, build_trained(assignment.config, ranks)
    store = open_store(assignment.job_uri)
    clock = clock_for(ranks.device)
    stepper = Stepper(
        trained.fsdp,
        trained.optimizer,
        Exchange(ranks.control),
        clock,
        clip_norm=config.train.clip_norm,
        seed=config.train.seed,
    )
    began = time.perf_counter()
    training = Training(
        config=config,
        first=ranks.first,
        batches=batches,
        stepper=stepper,
        evaluate=lambda step: (_ for _ in ()).throw(AssertionError("not part of a step")),
        saver=Saver(store, assignment, ranks, trained),
        events=EventWriter(store, 1, 0, ranks.place.rank),
        clock=clock,
        elapsed=lambda: time.perf_counter() - began,
        vote=lambda _: None,
        after_first_step=lambda: None,
        memory=lambda step: memory_peak(ranks, step),
        progress=Progress(),
    )

    def step() -> None:
        result, lr = one_step(training)
        log_step(training, result, lr)

    return step


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


def _pair(
    ours: Callable[[], None], bare: Callable[[], None], steps: int, *, first_ours: bool, ranks: Ranks
) -> tuple[Block, Block]:
    if first_ours:
        first = _block(ours, steps, ranks)
        return first, _block(bare, steps, ranks)
    second = _block(bare, steps, ranks)
    return _block(ours, steps, ranks), second


def _block(step: Callable[[], None], steps: int, ranks: Ranks) -> Block:
    dist.barrier(group=ranks.control)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    if ranks.device.type == "cuda":
        torch.cuda.synchronize()
    return Block((time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="interleaved pairs of blocks")
    parser.add_argument("--steps", type=int, default=5, help="steps per block")
    parser.add_argument("--global-batch", type=int, default=16, help="sequences per step")
    parser.add_argument("--out", default=None, help="JSON file for the result")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
