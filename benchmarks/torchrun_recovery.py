"""How plain `torchrun` recovers from what `convoy drill` does to a gang, measured from outside in the same way.

    python benchmarks/torchrun_recovery.py [--trials 3] [--drill worker-kill] [--out FILE.json]

Three nodes with a worker each on this machine, the default model under FSDP2 as one writes it without Convoy, a save
with torch.distributed.checkpoint every 10 steps. `defaults` is torchrun as it comes except for --max-restarts=3,
without which it never recovers. `tuned` is what its documents offer: keep-alives of a second, a process group that
gives up after 10 s. Where a node is lost, torchrun is started anew for it at once, as a scheduler would at best.
Seconds count from the injection, and end at 120.
"""

import argparse
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from measured import option_parser, percentiles, write_record
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from convoy.config.run import RunConfig
from convoy.gang.workers.processes import TAG, descendants, kill_tagged, new_tag, parents_by_pid, state_of
from convoy.model.init import initialise_weights
from convoy.model.transformer import Transformer

NODES = 3
STEPS = 100_000
SAVE_EVERY = 10
SEQUENCES = 3
"""Per rank and step: the default job's eight over three ranks, evened out."""

INJECT_AFTER = 23
CAP_SECONDS = 120.0
START_SECONDS = 180.0
VICTIM = 2
"""Neither node 0, where torchrun's own store is (its loss ends the job), nor rank 0."""

WORKER_FOLDER = "CONVOY_BENCHMARK_FOLDER"
"""Variable of a worker that torchrun starts: where it saves and logs."""

TIMEOUT = "CONVOY_BENCHMARK_TIMEOUT"
"""Seconds after which a worker's process group gives up."""


@dataclass(frozen=True)
class Setting:
    """How torchrun is started."""

    rendezvous: tuple[str, ...]
    """Entries of --rdzv-conf."""
    timeout_seconds: float
    """Of the process group."""


SETTINGS = {
    "defaults": Setting(rendezvous=(), timeout_seconds=1800.0),
    "tuned": Setting(
        rendezvous=("keep_alive_interval=1", "keep_alive_max_attempt=2", "last_call_timeout=1", "heartbeat_interval=1"),
        timeout_seconds=10.0,
    ),
}
DRILLS = ("worker-kill", "node-kill", "worker-stop")


@dataclass(frozen=True)
class Trial:
    """Seconds since the injection; None: not within CAP_SECONDS."""

    detected_s: float | None
    """Until the first other worker had ended, which is when torchrun, or the worker itself, knows."""
    recovered_s: float | None
    beyond_s: float | None
    steps_recomputed: int | None
    step_seconds: float


FIGURES = ("detected_s", "recovered_s", "beyond_s")


class Job:
    """Three torchruns and what they start. Use as a context."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self._setting = setting
        self._folder = folder
        self._tag = new_tag()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._port = listener.getsockname()[1]
        self._nodes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Job":
        self._nodes = [self._start(node) for node in range(NODES)]
        return self

    def __exit__(self, *_: object) -> None:
        kill_tagged(self._tag)
        for node in self._nodes:
            node.wait()

    def steps(self) -> list[dict[str, Any]]:
        """Rank 0's, oldest first."""
        log = self._folder / "rank-0.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def worker(self, node: int) -> int:
        """The worker's process; torchrun has no other child that runs this file."""
        return next(pid for pid in descendants(parents_by_pid(), self._nodes[node].pid) if _runs_this_file(pid))

    def kill_node(self, node: int) -> None:
        torchrun = self._nodes[node]
        for pid in (torchrun.pid, *descendants(parents_by_pid(), torchrun.pid)):
            os.kill(pid, signal.SIGKILL)
        torchrun.wait()
        self._nodes[node] = self._start(node)

    def _start(self, node: int) -> "subprocess.Popen[bytes]":
        command = [
            str(Path(sys.executable).with_name("torchrun")),
            f"--nnodes={NODES}",
            "--nproc-per-node=1",
            "--max-restarts=3",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{self._port}",
            "--rdzv-id=recovery",
            "--local-addr=127.0.0.1",
            # Where all are one machine, any of them would take the endpoint for its own, and the job with it.
            f"--rdzv-conf={','.join((f'is_host={int(node == 0)}', *self._setting.rendezvous))}",
            __file__,
        ]
        worker = {WORKER_FOLDER: str(self._folder), TIMEOUT: str(self._setting.timeout_seconds)}
        environment = {**os.environ, **worker, TAG: self._tag, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        with open(self._folder / f"node-{node}.log", "ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)


def main() -> int:
    options = _options()
    results: dict[str, dict[str, Any]] = {}
    for name in options.setting or SETTINGS:
        results[name] = {}
        for drill in options.drill or DRILLS:
            trials = []
            for number in range(options.trials):
                with tempfile.TemporaryDirectory(prefix="convoy-torchrun-") as folder:
                    trials.append(one_trial(drill, SETTINGS[name], Path(folder)))
                    print(f"{name} {drill} {number + 1}/{options.trials}: {trials[-1]}", file=sys.stderr, flush=True)
                    if trials[-1].recovered_s is None:
                        print(last_errors(Path(folder)), file=sys.stderr, flush=True)
            results[name][drill] = summarise(trials)
            print("\n".join(table(name, drill, results[name][drill])), flush=True)
    write_record(options.out, {"cap_seconds": CAP_SECONDS, "results": results})
    return 0


def one_trial(drill: str, setting: Setting, folder: Path) -> Trial:
    """Raises RuntimeError if the job never gets to where the fault comes."""
    with Job(setting, folder) as job:
        if not _within(START_SECONDS, lambda: len(job.steps()) >= INJECT_AFTER):
            raise RuntimeError((folder / "node-0.log").read_text()[-2000:])
        pid, others = job.steps()[-1]["pid"], [job.worker(node) for node in range(NODES) if node != VICTIM]
        victim = job.worker(VICTIM)
        began = time.time()
        match drill:
            case "worker-kill":
                os.kill(victim, signal.SIGKILL)
            case "worker-stop":
                os.kill(victim, signal.SIGSTOP)
            case "node-kill":
                job.kill_node(VICTIM)
        detected: list[float] = []

        def is_beyond() -> bool:
            if not detected and any(state_of(other) == "gone" for other in others):
                detected.append(time.time() - began)
            return _beyond(job.steps(), pid) is not None

        _within(CAP_SECONDS, is_beyond)
        steps = job.steps()
    done = [step for step in steps if step["pid"] == pid]
    first = next((step for step in steps if step["pid"] != pid), None)
    beyond = _beyond(steps, pid)
    return Trial(
        detected_s=detected[0] if detected else None,
        recovered_s=first["t"] - began if first else None,
        beyond_s=beyond["t"] - began if beyond else None,
        steps_recomputed=done[-1]["step"] - first["step"] + 1 if first else None,
        step_seconds=(done[-1]["t"] - done[4]["t"]) / (len(done) - 5),
    )


def last_errors(folder: Path) -> str:
    """The last errors that each torchrun printed: why it did not recover."""
    lines = []
    for log in sorted(folder.glob("node-*.log")):
        errors = [line.strip() for line in log.read_text(errors="replace").splitlines() if "error" in line.lower()]
        lines += [f"  {log.stem}: {line[:300]}" for line in (errors or ["no error"])[-4:]]
    return "\n".join(lines)


def summarise(trials: Sequence[Trial]) -> dict[str, Any]:
    """Each trial, and the figures of those that have them."""
    summary: dict[str, Any] = {"trials": [asdict(trial) for trial in trials]}
    for figure in FIGURES:
        values = [value for trial in trials if (value := getattr(trial, figure)) is not None]
        summary[figure] = {**(percentiles(values) if values else {}), "n": len(values)}
    return summary


def table(setting: str, drill: str, summary: dict[str, Any]) -> list[str]:
    """For the terminal."""
    lines = [f"{setting}, {drill}:"]
    for figure in FIGURES:
        n = summary[figure]["n"]
        median = f"median {summary[figure]['p50']:.1f} s" if n else f"none within {CAP_SECONDS:g} s"
        lines.append(f"  {figure.removesuffix('_s')}: {n} of {len(summary['trials'])} trials, {median}")
    return lines


def _beyond(steps: Sequence[dict[str, Any]], pid: int) -> dict[str, Any] | None:
    """The first step past what the process that was there at the injection has done."""
    last = max((step["step"] for step in steps if step["pid"] == pid), default=0)
    return next((step for step in steps if step["pid"] != pid and step["step"] > last), None)


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return False


def _runs_this_file(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return __file__.encode() in words and not any(word.endswith(b"torchrun") for word in words)


def work(folder: Path, timeout_seconds: float) -> None:
    """What torchrun starts on each node: it trains, resumes from the newest whole save, and logs each step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_seconds))
    config, rank = RunConfig(), dist.get_rank()
    model = Transformer(config.model, config.train.loss_chunk_tokens)
    initialise_weights(model, seed=0)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(restore(folder, model, optimizer) + 1, STEPS + 1):
        generator = torch.Generator().manual_seed(step * 1000 + rank)
        shape = (SEQUENCES, config.data.sequence_length + 1)
        tokens_bs = torch.randint(config.model.vocab_size, shape, generator=generator)
        loss = model(tokens_bs[:, :-1], tokens_bs[:, 1:]) / tokens_bs[:, 1:].numel()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with open(folder / f"rank-{rank}.jsonl", "a") as log:
            log.write(json.dumps({"t": time.time(), "pid": os.getpid(), "step": step}) + "\n")
        if step % SAVE_EVERY == 0:
            save(folder / f"step-{step:06d}", model, optimizer)


def save(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=str(folder))
    dist.barrier()
    if dist.get_rank() == 0:
        (folder / "whole").touch()


def restore(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Steps done."""
    whole = sorted(folder.glob("step-*/whole"))
    if not whole:
        return 0
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=str(whole[-1].parent))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    return int(whole[-1].parent.name.removeprefix("step-"))


def _options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    parser.add_argument("--trials", type=int, default=3, help="of each drill in each setting")
    parser.add_argument("--drill", action="append", choices=DRILLS, help="only this one; may be repeated")
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="only this one; may be repeated")
    return parser.parse_args()


if __name__ == "__main__":
    if WORKER_FOLDER in os.environ:
        work(Path(os.environ[WORKER_FOLDER]), float(os.environ[TIMEOUT]))
    else:
        sys.exit(main())
