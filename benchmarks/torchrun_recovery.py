"""How plain `torchrun` recovers from what `convoy drill` does to a gang, measured from outside in the same way.

    python benchmarks/torchrun_recovery.py [--trials 3] [--drill worker-kill] [--out FILE.json]

Three nodes with a worker each on this machine, the default model under FSDP2, a save every 10 steps. `defaults` is
torchrun as it comes but for --max-restarts=3, without which it never recovers. `tuned` is what its documents offer:
keep-alives of a second, a process group that gives up after 10 s. Where a node is lost, torchrun is started anew for it
at once, as a scheduler would at best. Seconds count from the injection, and end at 120.
"""

import argparse
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

from measured import descendants, percentiles, provenance

from convoy.gang.workers.processes import TAG, kill_tagged, new_tag

NODES = 3
STEPS = 100_000
SAVE_EVERY = 10
INJECT_AFTER = 23
CAP_SECONDS = 120.0
START_SECONDS = 180.0
WORKER = Path(__file__).with_name("torchrun_worker.py")
VICTIM = 2
"""Neither node 0, where torchrun's own store is (its loss ends the job), nor rank 0."""


@dataclass(frozen=True)
class Setting:
    """How torchrun is started."""

    rendezvous: tuple[str, ...]
    """Of --rdzv-conf."""
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


class Job:
    """Three torchruns and what they start. Use as a context."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self._setting = setting
        self._folder = folder
        self._marker = new_tag()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._port = listener.getsockname()[1]
        self._nodes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Job":
        self._nodes = [self._start(node) for node in range(NODES)]
        return self

    def __exit__(self, *_: object) -> None:
        kill_tagged(self._marker)
        for node in self._nodes:
            node.wait()

    def steps(self) -> list[dict[str, Any]]:
        """Rank 0's, oldest first."""
        log = self._folder / "rank-0.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        return [told for line in lines if (told := json.loads(line))["kind"] == "step"]

    def workers(self) -> dict[int, int]:
        """Node of each worker's process."""
        return {pid: node for node, run in enumerate(self._nodes) for pid in descendants(run.pid) if _trains(pid)}

    def kill_node(self, node: int) -> None:
        run = self._nodes[node]
        for pid in (run.pid, *descendants(run.pid)):
            os.kill(pid, signal.SIGKILL)
        run.wait()
        self._nodes[node] = self._start(node)

    def _start(self, node: int) -> "subprocess.Popen[bytes]":
        arguments = [str(self._folder), str(STEPS), str(SAVE_EVERY), str(self._setting.timeout_seconds)]
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
            str(WORKER),
            *arguments,
        ]
        environment = {**os.environ, TAG: self._marker, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        with open(self._folder / f"node-{node}.log", "ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)


def main() -> int:
    options = _options()
    found: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        if name not in (options.setting or SETTINGS):
            continue
        for drill in options.drill or DRILLS:
            trials = []
            for number in range(options.trials):
                with tempfile.TemporaryDirectory(prefix="convoy-torchrun-") as folder:
                    trials.append(one_trial(drill, setting, Path(folder)))
                    print(f"{name} {drill} {number + 1}/{options.trials}: {trials[-1]}", file=sys.stderr, flush=True)
                    if trials[-1].recovered_s is None:
                        print(last_words(Path(folder)), file=sys.stderr, flush=True)
            found.setdefault(name, {})[drill] = summarise(trials)
    record = {**provenance(), "command": " ".join(sys.argv), "cap_seconds": CAP_SECONDS, "results": found}
    print("\n".join(table(found)))
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def one_trial(drill: str, setting: Setting, folder: Path) -> Trial:
    """Raises RuntimeError if the job never gets to where the fault comes."""
    with Job(setting, folder) as job:
        if not _within(START_SECONDS, lambda: len(job.steps()) >= INJECT_AFTER):
            raise RuntimeError((folder / "node-0.log").read_text()[-2000:])
        before, workers = job.steps(), job.workers()
        victim = next(pid for pid, node in workers.items() if node == VICTIM)
        began = time.time()
        match drill:
            case "worker-kill":
                os.kill(victim, signal.SIGKILL)
            case "worker-stop":
                os.kill(victim, signal.SIGSTOP)
            case "node-kill":
                job.kill_node(VICTIM)
        others, pid = set(workers) - {victim}, before[-1]["pid"]
        until = began + CAP_SECONDS
        detected: float | None = None
        beyond: float | None = None
        while time.time() < until and (beyond := _beyond(job.steps(), pid, began)) is None:
            if detected is None and any(not _trains(other) for other in others):
                detected = time.time() - began
            time.sleep(0.02)
        steps = job.steps()
        again = [told for told in steps if told["pid"] != pid]
        first = again[0] if again else None
        done = [told for told in steps if told["pid"] == pid]
        return Trial(
            detected_s=detected,
            recovered_s=first["t"] - began if first else None,
            beyond_s=beyond,
            steps_recomputed=done[-1]["step"] - first["step"] + 1 if first else None,
            step_seconds=(done[-1]["t"] - done[4]["t"]) / (len(done) - 5),
        )


def last_words(folder: Path) -> str:
    """The last errors that each torchrun printed: why it did not recover."""
    found = []
    for log in sorted(folder.glob("node-*.log")):
        lines = log.read_text(errors="replace").splitlines()
        errors = [line.strip() for line in lines if "Error" in line or "error" in line] or ["no error"]
        found += [f"  {log.stem}: {line[:300]}" for line in errors[-4:]]
    return "\n".join(found)


def summarise(trials: Sequence[Trial]) -> dict[str, Any]:
    """Each trial, and the figures of those that have them."""
    told: dict[str, Any] = {"trials": [asdict(trial) for trial in trials]}
    for what in ("detected_s", "recovered_s", "beyond_s"):
        known = [value for trial in trials if (value := getattr(trial, what)) is not None]
        told[what] = {**(percentiles(known) if known else {}), "n": len(known)}
    return told


def table(found: dict[str, Any]) -> list[str]:
    """For the terminal."""
    lines = [f"{'setting':<10}{'drill':<14}{'detected':>20}{'recovered':>20}{'beyond':>20}"]
    for setting, drills in found.items():
        for drill, told in drills.items():
            cells = [_cell(told[what], len(told["trials"])) for what in ("detected_s", "recovered_s", "beyond_s")]
            lines.append(f"{setting:<10}{drill:<14}" + "".join(f"{cell:>20}" for cell in cells))
    return lines


def _cell(figure: dict[str, Any], trials: int) -> str:
    capped = f"> {CAP_SECONDS:g} s"
    if not figure["n"]:
        return capped
    told = f"{figure['p50']:.1f} s"
    return told if figure["n"] == trials else f"{told}, {trials - figure['n']} x {capped}"


def _beyond(steps: Sequence[dict[str, Any]], pid: int, began: float) -> float | None:
    last = max((told["step"] for told in steps if told["pid"] == pid), default=0)
    return next((told["t"] - began for told in steps if told["pid"] != pid and told["step"] > last), None)


def _within(seconds: float, happened: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if happened():
            return True
        time.sleep(0.05)
    return False


def _trains(pid: int) -> bool:
    """Whether the process is a worker that has not ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and str(WORKER).encode() in words[:3] and not any(word.endswith(b"torchrun") for word in words)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=3, help="of each drill in each setting")
    parser.add_argument("--drill", action="append", choices=DRILLS, help="only this one; may be repeated")
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="only this one; may be repeated")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for the result")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
