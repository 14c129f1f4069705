"""The rank's side of `overhead.py watching`: blocks of steps that are watched, and blocks that are not. And what would
be on other machines, and does not count: a scraper, and the target of notifications. Trackers write into folders.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args

import torch.distributed as dist
from blocks import WARMUP_PAIRS, Block, RankResult, alternate, begun, block
from measured import cpu_seconds_of_tree, process_tree

import gang
from convoy.config.monitor import MonitorConfig
from convoy.config.notify import TARGET, Moment, NotifyConfig
from convoy.config.trackers import TrackerConfig
from convoy.gang.task import Assignment
from convoy.job.events.log import EventWriter, read_events
from convoy.job.events.registry import StepDone
from convoy.launch.monitor.ports import listen_everywhere
from convoy.storage import open_store
from convoy.training.batches import RankData
from convoy.training.loop import Training
from convoy.training.process_groups import Ranks

SCRAPE_SECONDS = 5.0
"""Between two scrapes of an endpoint: a third of what Prometheus's example configuration has."""

SENT_SECONDS = 120.0
"""For each tracker to be imported and to have the first step."""

TARGETS = ("mlflow", "wandb", "tensorboard")
"""Trackers, and their folders below the root."""


class Watcher:
    """The process that watches this rank; stopped except in `at_work`."""

    def __init__(self, assignment: Assignment) -> None:
        """Returns when it serves metrics and, on node 0, when each tracker has the loss of a step and the message
        `started` is sent: at least one step must be done."""
        script = [sys.executable, str(Path(__file__).with_name("watcher.py"))]
        self._process = subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._say(assignment.model_dump_json())
        self._read()
        if assignment.place.rank == 0:
            self._wait_until_sent(assignment)
        self.start_cpu_seconds = cpu_seconds_of_tree(self._process.pid)
        self.end_cpu_seconds = 0.0
        self.samples = 0
        self.seconds_in_blocks: list[float] = []
        """CPU seconds of the process and of those below it, in each `at_work`."""
        self._signal(signal.SIGSTOP)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """It and the processes below it run while the block does."""
        before = cpu_seconds_of_tree(self._process.pid)
        self._signal(signal.SIGCONT)
        yield
        self._signal(signal.SIGSTOP)
        self.seconds_in_blocks.append(cpu_seconds_of_tree(self._process.pid) - before)

    def end(self) -> None:
        """Have it send the rest."""
        before = cpu_seconds_of_tree(self._process.pid)
        self._signal(signal.SIGCONT)
        self._say("end")
        self.samples = self._read()["samples"]
        self.end_cpu_seconds = cpu_seconds_of_tree(self._process.pid) - before

    def kill(self) -> None:
        for pid in process_tree(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        """Twice: a process may start another one meanwhile."""
        for _ in range(2):
            for pid in process_tree(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line: dict[str, Any] = json.loads(self._process.stdout.readline())
        return line

    def _wait_until_sent(self, assignment: Assignment) -> None:
        store, deadline = open_store(assignment.job_uri), time.monotonic() + SENT_SECONDS
        while missing := [name for name in TARGETS if not losses_in(Path(assignment.root) / name)]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{', '.join(missing)}: got nothing within {SENT_SECONDS:.0f} s")
            time.sleep(0.1)
        while "notified/started.sent" not in store.sizes("notified/"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no message was sent within {SENT_SECONDS:.0f} s")
            time.sleep(0.1)


def watching_on_rank(assignment: Assignment, ranks: Ranks, data: RankData, *, pairs: int, steps: int) -> RankResult:
    """Blocks of one loop, which logs those that are watched in the job that is followed, and the others elsewhere."""
    with data.prefetch_from(0) as batches:
        t = gang.training(assignment, ranks, batches)
        step, followed = begun(t), t.events
        elsewhere = EventWriter(open_store(f"{assignment.root}/plain"), assignment.generation, 0, assignment.place.rank)
        followed.flush()
        watcher = Watcher(assignment)
        try:
            dist.barrier(group=ranks.control)
            watched = partial(_watched_block, watcher, step, steps, ranks)
            plain = partial(block, step, steps, ranks)
            blocks = alternate(_logging_to(followed, t, watched), _logging_to(elsewhere, t, plain), pairs)
            followed.flush()
            dist.barrier(group=ranks.control)
            watcher.end()
        finally:
            watcher.kill()
        t.saver.close(0.0)
    apart = {
        "start_cpu_seconds": watcher.start_cpu_seconds,
        "end_cpu_seconds": watcher.end_cpu_seconds,
        "samples": watcher.samples,
    }
    return RankResult(blocks, [s / steps for s in watcher.seconds_in_blocks[WARMUP_PAIRS:]], apart)


def _logging_to(events: EventWriter, t: Training, a_block: Callable[[], Block]) -> Callable[[], Block]:
    """The block, whose steps are logged there."""

    def logged() -> Block:
        t.events = events
        return a_block()

    return logged


def _watched_block(watcher: Watcher, step: Callable[[], None], steps: int, ranks: Ranks) -> Block:
    """A block with all that watches at work, which counts."""
    with watcher.at_work():
        own = block(step, steps, ranks)
    return Block(own.cpu_seconds + watcher.seconds_in_blocks[-1] / steps, own.wall_seconds)


@dataclass
class Surroundings:
    """What is on other machines than the gang's, and what came there."""

    settings: Mapping[str, Any]
    """Of the configuration."""
    titles: list[str] = field(default_factory=list)
    """Of the messages."""
    scrapes: int = 0


@contextmanager
def surroundings(root: Path, nodes: int) -> Iterator[Surroundings]:
    """A target of notifications and a scraper, in threads, and folders for the trackers. Raises RuntimeError at the end
    of the block if a tracker lacks a step, or a message is missing."""
    port = _free_ports(nodes)
    with _target() as (url, titles):
        trackers = {
            "mlflow": (root / "mlflow").as_uri(),
            "wandb": "overhead",
            "tensorboard": str(root / "tensorboard"),
        }
        (root / "wandb").mkdir()
        os.environ |= {
            TARGET: url,
            "MLFLOW_ALLOW_FILE_STORE": "true",  # the only store that mlflow-skinny has without a server
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(root / "wandb"),
        }
        settings = {
            "monitor": MonitorConfig(port=port),
            "trackers": tuple(TrackerConfig.model_validate({kind: target}) for kind, target in trackers.items()),
            "notify": NotifyConfig(on=get_args(Moment)),
        }
        around = Surroundings(settings, titles)
        with _scraper(around, range(port, port + nodes)):
            yield around
        _check_sent(root, titles)


def _check_sent(root: Path, titles: list[str]) -> None:
    steps = sum(isinstance(e, StepDone) for e in read_events(open_store(str(root / "benchmark"))))
    for name in TARGETS:
        if (sent := losses_in(root / name)) < steps:
            raise RuntimeError(f"{name}: got {sent} of {steps} steps")
    if [title.split()[-1] for title in titles] != ["started", "finished"]:
        raise RuntimeError(f"messages were {titles}")


def losses_in(folder: Path) -> int:
    """How many steps' losses a tracker has written below a folder: lines of MLflow's file for that metric, or how often
    the metric's name stands in an event file of TensorBoard's or W&B's. Both may have a few more for their own use."""
    name, counts = "train/loss", [0]
    for file in folder.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            counts.append(data.count(b"\n") if str(file).endswith(name) else data.count(name.encode()))
    return max(counts)


@contextmanager
def _target() -> Iterator[tuple[str, list[str]]]:
    """A URL of apprise, and the titles of what is sent there."""
    titles: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            titles.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["title"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"json://127.0.0.1:{server.server_address[1]}", titles
        server.shutdown()


def _free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody has."""
    while True:
        with listen_everywhere(0) as first:
            port: int = first.getsockname()[1]
        with suppress(OSError, OverflowError):
            for each in range(port, port + count):
                listen_everywhere(each).close()
            return port


@contextmanager
def _scraper(around: Surroundings, ports: range) -> Iterator[None]:
    """Scrapes all endpoints at regular times while the block runs. One that is stopped answers when it runs again."""
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(SCRAPE_SECONDS):
            for port in ports:
                with suppress(OSError):  # not open yet, or no longer
                    request = f"http://127.0.0.1:{port}/metrics"
                    urllib.request.urlopen(request, timeout=60).read()
                    around.scrapes += 1

    threading.Thread(target=scrape, daemon=True).start()
    yield
    over.set()
