"""Convoy's checkpoints versus DCP and the bare storage: stall, time to commit, restore, CPU seconds.

    python benchmarks/checkpoint.py [--cases 512x1:24 256x2:24 ...] [--folder DIR]
        [--out benchmarks/results/checkpoint.json]

A case is MiB of state per rank x ranks : rounds. In one process group, each round takes every saver once, in an order
that changes from round to round. All of them save the same state, that of Convoy's own training: weights and AdamW
moments of a decoder under FSDP2, in the product's loop with its per-step exchange. A turn of a saver is

1. while training: plain steps, then a save, the step after it, and a few more. *call* is what the save itself took;
   *extra_step* is call plus the next step (which joins the staging) less the median of this turn's plain steps;
   *extra_window* the same over all steps after the save, with whatever the writing took from them. Once a round the
   same is measured with nothing saved: what the two say of steps alone is the error of the measurement;
2. at rest: the same save with nothing else going on, for *staged*, *committed* and the CPU seconds of the training
   process and of the processes that write for it;
3. *restore*, with the page cache told to forget the files, and *restore_warm*, right after that.

`convoy` is compared with `checkpoint.verify: false`: nobody else reads back what was written.

`raw` writes as many bytes from memory with write(2) and fsync in a thread, and reads them back: what the storage gives,
and what writing costs the steps that go on meanwhile. Times of a gang are its slowest rank's, of differences too, CPU
seconds are sums.
"""

import argparse
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from checkpoint_savers import SAVERS, Bench, Saver, State, differing, empty_like, local_bytes
from measured import at_least_fewest, cpu_seconds_below, option_parser, percentiles, ratio, write_record

import gang
from convoy.checkpoint.state.tensors import tensors_of
from convoy.config.loader import read_overrides, read_run, resolve
from convoy.config.run import RunConfig
from convoy.gang.task import Assignment
from convoy.stats.interval import interval
from convoy.training.batches import RankData
from convoy.training.engines.convoy import build_convoy_engine
from convoy.training.process_groups import Ranks

MIB = 2**20
CASES = ("512x1:24", "256x2:24", "64x1:12", "64x2:12", "2048x1:6", "128x4:6")
BYTES_PER_PARAMETER = 12
"""fp32 weight and the two moments of AdamW."""

LAYERS = 8
MIN_ROWS = 256
PLAIN_STEPS = 5
"""Before the save, the first of which does not count: it may still feel the saver before."""

ALONE = "steps alone"
"""Takes a turn in each round, and saves nothing."""

EXTRA = ("extra_step", "extra_window")
LATER_STEPS = 2
"""After the step that follows the save."""

LIMITS = {"call": 0.015, "extra_step": 0.025, "committed_to_raw": 1.25, "restore_to_dcp": 1.0}


@dataclass(frozen=True)
class Case:
    mib: int
    """Of state, per rank."""
    ranks: int
    rounds: int

    @classmethod
    def parsed(cls, text: str) -> "Case":
        match = re.fullmatch(r"(\d+)x(\d+):(\d+)", text)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text}: must be MiBxRANKS:ROUNDS, such as 512x1:24")
        mib, ranks, rounds = match.groups()
        return cls(int(mib), int(ranks), at_least_fewest(rounds))

    def config(self, root: str, tokens: int) -> RunConfig:
        """Eight square blocks, and a vocabulary that fills up to the wanted number of parameters. tokens: of a rank's
        batch; more of them make a step longer, and change nothing else."""
        parameters = -(-self.mib * MIB * self.ranks // BYTES_PER_PARAMETER)
        # Of a block: 12 d^2 weights and a few d; a tenth of all is left for the embedding.
        width = max(16, int((0.9 * parameters / (12 * LAYERS)) ** 0.5) // 16 * 16)
        blocks = LAYERS * (12 * width * width + 13 * width) + (tokens + 2) * width
        rows = max(MIN_ROWS, -(-(parameters - blocks) // (2 * width)))
        words = (
            f"root={root} data.corpus.kind=synthetic data.corpus.vocab_size={MIN_ROWS} data.sequence_length={tokens}"
            f" model.n_layers={LAYERS} model.n_heads=4 model.d_model={width} model.vocab_size={rows}"
            f" model.tied_embeddings=false model.max_sequence_length={tokens} train.global_batch={self.ranks}"
            " train.micro_batch=1 train.steps=1000000 train.param_dtype=fp32 train.matmul_peak_seconds=0"
            " optimizer.lr=1e-5 schedule.decay_steps=1000"
        )
        return resolve(read_run(""), read_overrides(words))


@dataclass(frozen=True)
class Turn:
    """What one saver took in one round, on one rank or the whole gang. Seconds."""

    plain_step: float
    call: float
    extra_step: float
    extra_window: float
    committed_training: float
    """From the save to its commit, with steps going on."""
    staged: float
    committed: float
    restore: float
    restore_warm: float
    cpu_save_training: float
    cpu_save_writer: float
    cpu_restore: float


def main() -> int:
    options = _options()
    cases = []
    for case in options.cases:
        with tempfile.TemporaryDirectory(prefix="convoy-checkpoint-", dir=options.folder) as folder:
            body = partial(turns_of_rank, case=case, folder=Path(folder), names=options.savers)
            ranks = gang.on_gang(case.config(f"{folder}/root", options.tokens), body, case.ranks)
        turns = {
            name: [_gang([rank["turns"][name][i] for rank in ranks]) for i in range(case.rounds)]
            for name in options.savers
        }
        alone = [_extra_of_gang([rank["alone"][i] for rank in ranks]) for i in range(case.rounds)]
        cases.append(summarise(case, sum(rank["bytes"] for rank in ranks), turns, alone))
        print("\n".join(table(cases[-1])), flush=True)
        plain = {**vars(options), "cases": [asdict(each) for each in options.cases]}
        write_record(options.out, {"options": plain, "cases": cases})
    return 0 if all(limit["met"] for result in cases for limit in result["acceptance"].values()) else 1


def turns_of_rank(
    assignment: Assignment, ranks: Ranks, data: RankData, *, case: Case, folder: Path, names: Sequence[str]
) -> dict[str, Any]:
    """All rounds of a case on one rank."""
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    alone: list[dict[str, float]] = []
    with data.prefetch_from(0) as batches:
        trained = build_convoy_engine(assignment.config, ranks)
        training = gang.training(assignment, ranks, batches, trained=trained)
        bench = Bench(assignment, ranks, trained, training, {})
        _step(bench)  # makes the moments
        bench.state = tensors_of(trained.module, trained.optimizer)
        target = empty_like(bench.state)
        savers = {name: SAVERS[name](folder / name, bench) for name in names}
        step = 0
        for number in range(-1, case.rounds):  # the first one warms up
            for name in random.Random(number).sample([*names, ALONE], len(names) + 1):
                if name == ALONE:
                    alone.append(_steps_alone(bench))
                    continue
                turn = _turn(savers[name], bench, target, step)
                if number >= 0:
                    turns[name].append(turn)
                elif not name.startswith("raw") and (wrong := differing(bench.state, target)):
                    raise RuntimeError(f"{name} restored another state than it saved: {wrong[:3]}")
                step += 2
        for saver in savers.values():
            saver.close()
    return {"bytes": local_bytes(bench.state), "turns": turns, "alone": alone[1:]}


def _turn(saver: Saver, bench: Bench, target: State, step: int) -> Turn:
    while_training = _save_while_training(saver, bench, step + 1)
    at_rest = _save_at_rest(saver, step + 2)
    restore, cpu = _restore(saver, target, step + 2, cold=True)
    warm, _ = _restore(saver, target, step + 2, cold=False)
    dist.barrier()
    if dist.get_rank() == 0:
        saver.forget(step + 1)
        saver.forget(step + 2)
    dist.barrier()
    return Turn(**while_training, **at_rest, restore=restore, restore_warm=warm, cpu_restore=cpu)


def _step(bench: Bench) -> float:
    """Seconds of one step."""
    began = time.perf_counter()
    gang.one_step_of(bench.training)
    return time.perf_counter() - began


def _save_while_training(saver: Saver, bench: Bench, step: int) -> dict[str, float]:
    plain = _plain_step(bench)
    began = time.perf_counter()
    saver.save(step, at_rest=False)
    call = time.perf_counter() - began
    extra = _extra(call, [_step(bench) for _ in range(1 + LATER_STEPS)], plain)
    return {"plain_step": plain, "call": call, **extra, "committed_training": saver.committed() - began}


def _steps_alone(bench: Bench) -> dict[str, float]:
    plain = _plain_step(bench)
    return {"plain_step": plain, **_extra(0.0, [_step(bench) for _ in range(1 + LATER_STEPS)], plain)}


def _plain_step(bench: Bench) -> float:
    _settle()
    return statistics.median([_step(bench) for _ in range(PLAIN_STEPS)][1:])


def _extra(call: float, after: Sequence[float], plain: float) -> dict[str, float]:
    return dict(zip(EXTRA, (call + after[0] - plain, call + sum(after) - len(after) * plain), strict=True))


def _save_at_rest(saver: Saver, step: int) -> dict[str, float]:
    _settle()
    began, own, writers = time.perf_counter(), time.process_time(), cpu_seconds_below()
    saver.save(step, at_rest=True)
    saver.staged()
    staged = time.perf_counter() - began
    committed = saver.committed() - began
    own = time.process_time() - own
    dist.barrier()
    return {
        "staged": staged,
        "committed": committed,
        "cpu_save_training": own,
        "cpu_save_writer": cpu_seconds_below() - writers,
    }


def _restore(saver: Saver, target: State, step: int, *, cold: bool) -> tuple[float, float]:
    """Seconds, and CPU seconds."""
    _settle()
    if cold and dist.get_rank() == 0:
        saver.drop_cache()
    dist.barrier()
    began, own = time.perf_counter(), time.process_time()
    saver.load(step, target)
    seconds, own = time.perf_counter() - began, time.process_time() - own
    dist.barrier()
    return seconds, own


def _settle() -> None:
    """What the turn before has left to write is written now, not at the cost of the next one."""
    dist.barrier()
    if dist.get_rank() == 0:
        os.sync()
    dist.barrier()


def _gang(turns: Sequence[Turn]) -> Turn:
    """Of all ranks of one round: the slowest one's times, and CPU seconds together."""
    values = {name: [asdict(turn)[name] for turn in turns] for name in asdict(turns[0])}
    of_gang = {name: sum(own) if name.startswith("cpu_") else max(own) for name, own in values.items()}
    return Turn(**{**of_gang, **_extra_of_gang([asdict(turn) for turn in turns])})


def _extra_of_gang(ranks: Sequence[dict[str, float]]) -> dict[str, float]:
    """The gang's steps with the save less its plain ones. Not the largest of the ranks' own differences: of ranks that
    wait for each other one is late and another early by chance, and with nothing saved that would find something."""
    plain = max(own["plain_step"] for own in ranks)
    steps = dict(zip(EXTRA, (1, 1 + LATER_STEPS), strict=True))
    return {n: max(own[n] + k * own["plain_step"] for own in ranks) - k * plain for n, k in steps.items()}


def summarise(
    case: Case, state_bytes: int, turns: dict[str, list[Turn]], alone: Sequence[dict[str, float]]
) -> dict[str, Any]:
    """turns: of each saver, one per round. alone: what was measured in each round where nothing was saved."""
    pairs = {}
    for other in turns.keys() - {"convoy"} if "convoy" in turns else ():
        both = list(zip(turns["convoy"], turns[other], strict=True))
        pairs[other] = {
            what: ratio([(getattr(a, what), getattr(b, what)) for a, b in both])
            for what in ("committed", "committed_training", "restore", "restore_warm")
        }
    savers = {name: _of_saver(own, state_bytes) for name, own in turns.items()}
    result = {"case": asdict(case), "state_bytes": state_bytes, "savers": savers, "convoy_to": pairs}
    result["steps_alone"] = {what: percentiles([extra[what] for extra in alone]) for what in EXTRA}
    raw = {name: [asdict(turn) for turn in own] for name, own in turns.items()}
    return {**result, "acceptance": acceptance(result), "raw": {**raw, "steps_alone": list(alone)}}


def _of_saver(turns: Sequence[Turn], state_bytes: int) -> dict[str, Any]:
    gigabytes = state_bytes / 1e9
    values = {name: [asdict(turn)[name] for turn in turns] for name in asdict(turns[0])}
    seconds = {name: percentiles(own) for name, own in values.items() if not name.startswith("cpu_")}

    # Means: a process' CPU time comes in slices, which only many rounds even out.
    cpu = {
        name.removeprefix("cpu_"): statistics.mean(own) / gigabytes
        for name, own in values.items()
        if name.startswith("cpu_")
    }
    return {
        "seconds": seconds,
        "medians": {what: interval(values[what]).model_dump() for what in ("call", "extra_step")},
        "gb_per_second": {what: gigabytes / seconds[what]["p50"] for what in ("committed", "restore", "restore_warm")},
        "cpu_seconds_per_gb": cpu,
    }


def acceptance(result: dict[str, Any]) -> dict[str, Any]:
    """What Convoy promises of its checkpoints, and what was measured, each with its 95 % interval over rounds; empty
    where its counterparts were not measured."""
    pairs = result["convoy_to"]
    if not {"raw", "dcp_sync"} <= pairs.keys():
        return {}
    medians = result["savers"]["convoy"]["medians"]
    to_raw, to_dcp = pairs["raw"]["committed"], pairs["dcp_sync"]["restore"]
    measured = {
        "call": (medians["call"]["estimate"], medians["call"]),
        "extra_step": (medians["extra_step"]["estimate"], medians["extra_step"]),
        "committed_to_raw": (to_raw["ratio"], to_raw),
        "restore_to_dcp": (to_dcp["ratio"], to_dcp),
    }
    judged = {}
    for what, limit in LIMITS.items():
        found, spread = measured[what]
        judged[what] = {"found": found, "low": spread["low"], "high": spread["high"]}
        judged[what] |= {"limit": limit, "met": found <= limit}
    return judged


COLUMNS = ("call", "extra_step", "extra_window", "staged", "committed", "committed_training", "restore", "restore_warm")


def table(result: dict[str, Any]) -> list[str]:
    """For the terminal: milliseconds p50/p90/max, and p50 as GB/s."""
    case, savers = result["case"], result["savers"]
    size = f"{result['state_bytes'] / 1e6:.0f} MB"
    title = f"{case['mib']} MiB x {case['ranks']} ranks, {case['rounds']} rounds ({size})"
    plain = statistics.median(saver["seconds"]["plain_step"]["p50"] for saver in savers.values())
    lines = [
        "",
        f"{title}, a plain step {plain * 1000:.0f} ms; ms as p50/p90/max",
        f"{'':16}" + "".join(f"{name:>20}" for name in COLUMNS) + f"{'GB/s save, load':>18}"
        f"{'CPU s/GB save+writer, load':>28}",
    ]
    for name, saver in savers.items():
        cells = "".join(f"{_milliseconds(saver['seconds'][column]):>20}" for column in COLUMNS)
        rate, cpu = saver["gb_per_second"], saver["cpu_seconds_per_gb"]
        lines.append(
            f"{name:16}{cells}{rate['committed']:10.2f}, {rate['restore']:.2f}  "
            f"{cpu['save_training']:14.2f}+{cpu['save_writer']:.2f}, {cpu['restore']:.2f}"
        )
    alone = ", ".join(f"{what} {_milliseconds(spread)}" for what, spread in result["steps_alone"].items())
    lines.append(f"{ALONE}, with nothing saved: {alone}")
    for other, pairs in sorted(result["convoy_to"].items()):
        ratios = "; ".join(f"{n} {p['ratio']:.3f} ({p['low']:.3f} to {p['high']:.3f})" for n, p in pairs.items())
        lines.append(f"convoy / {other}: {ratios}")
    for what, limit in result["acceptance"].items():
        lines.append(
            f"{what}: {limit['found']:.4f} ({limit['low']:.4f} to {limit['high']:.4f}), at most {limit['limit']}: "
            f"{'met' if limit['met'] else 'NOT MET'}"
        )
    return lines


def _milliseconds(seconds: dict[str, float]) -> str:
    return "/".join(f"{seconds[which] * 1000:.0f}" for which in ("p50", "p90", "max"))


def _options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    parser.add_argument("--cases", type=Case.parsed, nargs="+", default=[Case.parsed(case) for case in CASES])
    parser.add_argument("--savers", nargs="+", choices=SAVERS, default=list(SAVERS))
    parser.add_argument("--tokens", type=int, default=64, help="of a rank's batch: longer steps, the same state")
    parser.add_argument("--folder", type=Path, help="on the storage that is measured; default: $TMPDIR")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
