"""Convoy's checkpoints beside torch.save, DCP, safetensors and the bare storage: stall, time to commit, restore, CPU.

    python benchmarks/checkpoint.py [--cases 512x1:24 256x2:24 ...] [--folder DIR]
        [--out benchmarks/results/checkpoint.json]

A case is MiB of state per rank x ranks : rounds. In one process group, each round takes every saver once, and which one
goes first moves on by one from round to round. All of them save the same state: weights and AdamW moments of a decoder
under FSDP2. A turn of a saver is

1. while training: plain steps, then a save, the step after it, and a few more. *call* is what the save itself took;
   *extra_step* is call plus the next step (which joins the staging) less the median of this turn's plain steps;
   *extra_window* the same over all steps after the save, with whatever the writing took from them. Once a round the
   same is measured with nothing saved: what the two say of steps alone is the error of the measurement;
2. at rest: the same save with nothing else going on, for *staged*, *committed* and the CPU seconds of the training
   process and of the processes that write for it;
3. *restore*, with the page cache told to forget the files, and *restore_warm*, right after that.

`convoy` is compared with `verify=False`: nobody else reads back what was written. `convoy_verified` does, as it comes:
its CPU seconds of a save include that, and its *extra_window* a part of it.

`raw` writes as many bytes from memory with write(2) and fsync in a thread, and reads them back with read(2): what the
storage gives, and what writing costs the steps that go on meanwhile. `raw_direct` does it with four threads past the
page cache, which is the most that the storage gives. Times of a gang are its slowest
rank's, of differences too, CPU seconds are sums.
torch.save and safetensors write each rank's own parts and cannot reshard.

S3 is measured by checkpoint_s3.py.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch.distributed as dist
from checkpoint_model import Training, connect, differs, empty_like, local_bytes
from checkpoint_savers import SAVERS, Saver, drop_cache, make_saver
from measured import cpu_seconds, descendants, percentiles, provenance, ratio_of_medians

MIB = 2**20
CASES = ("512x1:24", "256x2:24", "64x1:12", "64x2:12", "2048x1:6", "128x4:6")
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
        found = re.fullmatch(r"(\d+)x(\d+):(\d+)", text)
        if found is None:
            raise argparse.ArgumentTypeError(f"{text}: must be MiBxRANKS:ROUNDS, such as 512x1:24")
        return cls(*(int(number) for number in found.groups()))


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
    record: dict[str, Any] = {**provenance(), "command": " ".join(sys.argv), "options": _plain(options), "cases": []}
    good = True
    with tempfile.TemporaryDirectory(prefix="convoy-checkpoint-", dir=options.folder) as folder:
        for case in options.cases:
            result = measure(case, Path(folder), options.savers, options.tokens)
            record["cases"].append(result)
            print("\n".join(table(result)), flush=True)
            good = good and all(told["met"] for told in result["acceptance"].values())
            if options.out is not None:
                options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if good else 1


def measure(case: Case, folder: Path, savers: Sequence[str], tokens: int) -> dict[str, Any]:
    """All rounds of a case, in processes of their own."""
    context = multiprocessing.get_context("spawn")
    arguments = (case, folder, list(savers), tokens, _free_port())
    workers = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(case.ranks)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    failed = [worker.exitcode for worker in workers if worker.exitcode]
    if failed:
        raise RuntimeError(f"a rank failed: exit codes {failed}")
    found = [json.loads(_result(folder, rank).read_text()) for rank in range(case.ranks)]
    turns = {s: [_gang([Turn(**told["turns"][s][i]) for told in found]) for i in range(case.rounds)] for s in savers}
    alone = [_gang_s_extra([told["alone"][i] for told in found]) for i in range(case.rounds)]
    return summarise(case, sum(told["bytes"] for told in found), turns, alone)


def _result(folder: Path, rank: int) -> Path:
    return folder / f"result-{rank}.json"


def _rank(rank: int, case: Case, folder: Path, names: list[str], tokens: int, port: int) -> None:
    connect(rank, case.ranks, port, threads=1)
    training = Training(case.mib * MIB * case.ranks, tokens)
    target = empty_like(training.state)
    savers = {name: make_saver(name, folder / f"{case.mib}x{case.ranks}-{name}", training) for name in names}
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    alone: list[dict[str, float]] = []
    step = 0
    for number in range(-1, case.rounds):  # the first one warms up
        for name in random.Random(number).sample([*names, ALONE], len(names) + 1):
            if name == ALONE:
                alone.append(_steps_alone(training))
                continue
            turn = _turn(savers[name], training, target, step)
            if number < 0:
                _check(name, training, target)
            else:
                turns[name].append(turn)
            step += 2
    for saver in savers.values():
        saver.close()
    told = {name: [asdict(turn) for turn in found] for name, found in turns.items()}
    found = {"bytes": local_bytes(training.state), "turns": told, "alone": alone[1:]}
    _result(folder, rank).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _turn(saver: Saver, training: Training, target: dict[str, Any], step: int) -> Turn:
    while_training = _save_while_training(saver, training, step + 1)
    saver.quiet(step + 1)
    at_rest = _save_at_rest(saver, training, step + 2)
    restore, cpu = _restore(saver, target, step + 2, cold=True)
    warm, _ = _restore(saver, target, step + 2, cold=False)
    saver.forget(step + 1)
    saver.forget(step + 2)
    return Turn(**while_training, **at_rest, restore=restore, restore_warm=warm, cpu_restore=cpu)


def _save_while_training(saver: Saver, training: Training, step: int) -> dict[str, float]:
    plain = _plain_step(training)
    began = time.perf_counter()
    pending = saver.save(step, training.state)
    call = time.perf_counter() - began
    after = [training.step(None if saver.joins_itself else pending.staged)]
    after += [training.step() for _ in range(LATER_STEPS)]
    return {
        "plain_step": plain,
        "call": call,
        **_extra(call, after, plain),
        "committed_training": pending.wait() - began,
    }


def _steps_alone(training: Training) -> dict[str, float]:
    plain = _plain_step(training)
    return {"plain_step": plain, **_extra(0.0, [training.step() for _ in range(1 + LATER_STEPS)], plain)}


def _plain_step(training: Training) -> float:
    _settle()
    return statistics.median([training.step() for _ in range(PLAIN_STEPS)][1:])


def _extra(call: float, after: Sequence[float], plain: float) -> dict[str, float]:
    return dict(zip(EXTRA, (call + after[0] - plain, call + sum(after) - len(after) * plain), strict=True))


def _save_at_rest(saver: Saver, training: Training, step: int) -> dict[str, float]:
    _settle()
    began, own, others = time.perf_counter(), time.process_time(), _writers()
    pending = saver.save(step, training.state)
    pending.staged()
    staged = time.perf_counter() - began
    committed = pending.wait() - began
    own = time.process_time() - own
    saver.quiet(step)
    return {
        "staged": staged,
        "committed": committed,
        "cpu_save_training": own,
        "cpu_save_writer": _writers() - others,
    }


def _restore(saver: Saver, target: dict[str, Any], step: int, *, cold: bool) -> tuple[float, float]:
    """Seconds, and CPU seconds."""
    _settle()
    if cold and dist.get_rank() == 0:
        drop_cache(saver.folder)
    dist.barrier()
    began, own = time.perf_counter(), time.process_time()
    saver.load(step, target)
    return time.perf_counter() - began, time.process_time() - own


def _settle() -> None:
    """What the turn before has left to write is written now, not at the cost of the next one."""
    dist.barrier()
    if dist.get_rank() == 0:
        os.sync()
    dist.barrier()


def _writers() -> float:
    """CPU seconds of the processes that this rank has started."""
    return sum(cpu_seconds(pid) for pid in descendants(os.getpid()))


def _check(name: str, training: Training, target: dict[str, Any]) -> None:
    wrong = [] if name.startswith("raw") else differs(training.state, target)
    if wrong:
        raise RuntimeError(f"{name} gave back something else than was saved: {wrong[:3]}")


def _gang(turns: Sequence[Turn]) -> Turn:
    """Of all ranks of one round: the slowest one's times, and CPU seconds together."""
    values = {name: [asdict(turn)[name] for turn in turns] for name in asdict(turns[0])}
    found = {n: sum(told) if n.startswith("cpu_") else max(told) for n, told in values.items()}
    return Turn(**{**found, **_gang_s_extra([asdict(turn) for turn in turns])})


def _gang_s_extra(ranks: Sequence[dict[str, float]]) -> dict[str, float]:
    """The gang's steps with the save less its plain ones. Not the largest of the ranks' own differences: of ranks that
    wait for each other one is late and another early by chance, and with nothing saved that would find something."""
    plain = max(told["plain_step"] for told in ranks)
    steps = dict(zip(EXTRA, (1, 1 + LATER_STEPS), strict=True))
    return {n: max(told[n] + k * told["plain_step"] for told in ranks) - k * plain for n, k in steps.items()}


def summarise(
    case: Case, state_bytes: int, turns: dict[str, list[Turn]], alone: Sequence[dict[str, float]]
) -> dict[str, Any]:
    """turns: of each saver, one per round. alone: what was found in each round where nothing was saved."""
    savers = {name: _of_saver(found, state_bytes) for name, found in turns.items()}
    pairs = {}
    for other in turns.keys() - {"convoy"} if "convoy" in turns else ():
        pairs[other] = {
            what: ratio_of_medians([(getattr(a, what), getattr(b, what)) for a, b in _both(turns, other)])
            for what in ("committed", "committed_training", "restore", "restore_warm")
        }
    result = {"case": asdict(case), "state_bytes": state_bytes, "savers": savers, "convoy_to": pairs}
    result["steps_alone"] = {what: percentiles([found[what] for found in alone]) for what in EXTRA}
    raw = {name: [asdict(turn) for turn in found] for name, found in turns.items()}
    return {**result, "acceptance": acceptance(result), "raw": {**raw, "steps_alone": list(alone)}}


def _both(turns: dict[str, list[Turn]], other: str) -> list[tuple[Turn, Turn]]:
    return list(zip(turns["convoy"], turns[other], strict=True))


def _of_saver(turns: Sequence[Turn], state_bytes: int) -> dict[str, Any]:
    gigabytes = state_bytes / 1e9
    seconds = {name: percentiles([asdict(turn)[name] for turn in turns]) for name in asdict(turns[0])}
    return {
        "seconds": {name: told for name, told in seconds.items() if not name.startswith("cpu_")},
        "gb_per_second": {what: gigabytes / seconds[what]["p50"] for what in ("committed", "restore", "restore_warm")},
        # Means: a process' CPU time is told in slices, which only many rounds even out.
        "cpu_seconds_per_gb": {
            name.removeprefix("cpu_"): statistics.mean(asdict(turn)[name] for turn in turns) / gigabytes
            for name in seconds
            if name.startswith("cpu_")
        },
    }


def acceptance(result: dict[str, Any]) -> dict[str, Any]:
    """What Convoy promises of its checkpoints, and what was found; empty where its counterparts were not measured."""
    if not {"raw", "dcp_sync"} <= result["convoy_to"].keys():
        return {}
    seconds, pairs = result["savers"]["convoy"]["seconds"], result["convoy_to"]
    found = {
        "call": seconds["call"]["p50"],
        "extra_step": seconds["extra_step"]["p50"],
        "committed_to_raw": pairs["raw"]["committed"]["ratio"],
        "restore_to_dcp": pairs["dcp_sync"]["restore"]["ratio"],
    }
    return {what: {"found": found[what], "limit": LIMITS[what], "met": found[what] <= LIMITS[what]} for what in LIMITS}


COLUMNS = ("call", "extra_step", "extra_window", "staged", "committed", "committed_training", "restore", "restore_warm")


def table(result: dict[str, Any]) -> list[str]:
    """For the terminal: milliseconds p50/p90/max, and p50 as GB/s."""
    case, savers = result["case"], result["savers"]
    plain = statistics.median(told["seconds"]["plain_step"]["p50"] for told in savers.values())
    lines = [
        "",
        f"{_name(case)} ({result['state_bytes'] / 1e6:.0f} MB), a plain step {plain * 1000:.0f} ms; ms as p50/p90/max",
        f"{'':16}" + "".join(f"{name:>20}" for name in COLUMNS) + f"{'GB/s save, load':>18}{'of raw':>14}"
        f"{'CPU s/GB save+writer, load':>28}",
    ]
    for name, told in savers.items():
        cells = "".join(f"{_milliseconds(told['seconds'][column]):>20}" for column in COLUMNS)
        rate, cpu = told["gb_per_second"], told["cpu_seconds_per_gb"]
        share = ""
        if "raw" in savers:
            raw = savers["raw"]["gb_per_second"]
            share = f"{rate['committed'] / raw['committed']:.2f}, {rate['restore'] / raw['restore']:.2f}"
        lines.append(
            f"{name:16}{cells}{rate['committed']:10.2f}, {rate['restore']:.2f}  {share:>14}"
            f"{cpu['save_training']:14.2f}+{cpu['save_writer']:.2f}, {cpu['restore']:.2f}"
        )
    told = (f"{what} {_milliseconds(found)}" for what, found in result["steps_alone"].items())
    lines.append(f"{ALONE}, with nothing saved: {', '.join(told)}")
    for other, pairs in sorted(result["convoy_to"].items()):
        told = "; ".join(f"{n} {p['ratio']:.3f} ({p['low']:.3f} to {p['high']:.3f})" for n, p in pairs.items())
        lines.append(f"convoy / {other}: {told}")
    for what, told in result["acceptance"].items():
        lines.append(f"{what}: {told['found']:.4f}, at most {told['limit']}: {'met' if told['met'] else 'NOT MET'}")
    return lines


def _name(case: dict[str, int]) -> str:
    return f"{case['mib']} MiB x {case['ranks']} ranks, {case['rounds']} rounds"


def _milliseconds(seconds: dict[str, float]) -> str:
    return "/".join(f"{seconds[which] * 1000:.0f}" for which in ("p50", "p90", "max"))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    cases = [asdict(case) for case in options.cases]
    return {**vars(options), "cases": cases, "folder": str(options.folder), "out": str(options.out)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Case.parsed, nargs="+", default=[Case.parsed(case) for case in CASES])
    parser.add_argument("--savers", nargs="+", choices=SAVERS, default=list(SAVERS))
    parser.add_argument("--tokens", type=int, default=64, help="of a rank's batch: longer steps, the same state")
    parser.add_argument("--folder", type=Path, default=None, help="on the storage that is measured; default: $TMPDIR")
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
