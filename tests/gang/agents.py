"""Agents of a gang in processes of their own, which report what they learn of each other.

Such a process runs this file: its options are one JSON argument; what it sends comes in, and events go out, as lines of
JSON. Options:
token, node, nodes, host of node 0; of any node but 0 also its port; skew: seconds by which its clock is ahead.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from queue import Empty, SimpleQueue
from typing import Any

from convoy.gang.network.formation import PeerJoined
from convoy.gang.network.handshake import Hello, NodeAddress
from convoy.gang.network.peers import Peers
from convoy.gang.network.sockets import listen

TOKEN = "the token of this gang"

PATIENCE_SECONDS = 20.0


def a_hello(node: int, nodes: int, nproc: int = 1, hostname: str = "host", port: int = 1) -> Hello:
    return Hello(node=node, nodes=nodes, nproc=nproc, hostname=hostname, port=port, wall=0.0)


def a_member(node: int) -> NodeAddress:
    return NodeAddress(node=node, address="10.0.0.1", port=1000 + node)


@dataclass(frozen=True)
class Seen:
    """An event in another process."""

    kind: str
    """The event's class."""
    fields: dict[str, Any]
    at: float
    """Of time.monotonic(), which all processes of a host share."""


class Agent:
    """A process with a Peers of its own."""

    def __init__(self, prefix: Sequence[str] = (), **options: Any) -> None:
        """prefix: of the command line, such as `ip netns exec NAME`."""
        self.node: int = options["node"]
        self.seen: list[Seen] = []
        self._arrived = threading.Condition()
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.gang.agents", json.dumps({"token": TOKEN, **options})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def of(self, kind: str, since: float = 0.0, **fields: Any) -> list[Seen]:
        """What it saw of this kind, with these fields, from that time on."""
        return [
            seen
            for seen in list(self.seen)
            if seen.kind == kind and seen.at >= since and fields.items() <= seen.fields.items()
        ]

    def await_one(self, kind: str, since: float = 0.0, **fields: Any) -> Seen:
        """The first such event, as `of`. Raises AssertionError if none comes."""
        with self._arrived:
            came = self._arrived.wait_for(lambda: self.of(kind, since, **fields), PATIENCE_SECONDS)
        assert came, f"node {self.node} saw no {kind} {fields}, but {self.seen}"
        return self.of(kind, since, **fields)[0]

    def send(self, to: int | None, body: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([to, body]) + "\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> float:
        """Send a signal; when, of time.monotonic()."""
        at = time.monotonic()
        os.kill(self._process.pid, number)
        return at

    def end(self) -> None:
        """Whatever state it is in."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            fields = json.loads(line)
            with self._arrived:
                self.seen.append(Seen(fields.pop("kind"), fields, fields.pop("at")))
                self._arrived.notify_all()


@contextlib.contextmanager
def agents(count: int, host: str = "127.0.0.1", prefixes: Sequence[Sequence[str]] = ()) -> Iterator[list[Agent]]:
    """A gang that is formed. host: where node 0 is. prefixes: of each node's command line."""
    prefixes = prefixes or [()] * count
    started = [Agent(prefixes[0], node=0, nodes=count, host=host)]
    try:
        port = started[0].await_one("Listening").fields["port"]
        for node in range(1, count):
            started.append(Agent(prefixes[node], node=node, nodes=count, host=host, port=port))
        for agent in started:
            agent.await_one("GangFormed")
        yield started
    finally:
        for agent in started:
            agent.end()


def alarms(gang: list[Agent]) -> list[Seen]:
    kinds = ("PeerSilent", "PeerReportedSilent", "PeerGone")
    return [seen for agent in gang for seen in agent.seen if seen.kind in kinds]


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes compute while the block runs."""
    processes = [multiprocessing.get_context("fork").Process(target=_compute) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _compute() -> None:
    while True:
        sum(range(10_000))


def next_event(events: SimpleQueue[Any], kind: Any) -> Any:
    """The next event of this kind or these kinds; others before it are passed over. For a Peers of this process."""
    deadline, passed = time.monotonic() + PATIENCE_SECONDS, []
    while True:
        try:
            event = events.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            raise AssertionError(f"no {kind}, but {passed}") from None
        if isinstance(event, kind):
            return event
        passed.append(event)


def _print(kind: str, **fields: Any) -> None:
    print(json.dumps({**fields, "kind": kind, "at": time.monotonic()}, default=str), flush=True)


def _obey(peers: Peers) -> None:
    for line in sys.stdin:
        peers.send(*json.loads(line))
    os._exit(1)  # who started it is gone


def _main(options: dict[str, Any]) -> None:
    real = time.time
    time.time = lambda: real() + options.get("skew", 0.0)
    size = {"nodes": options["nodes"], "nproc": 1}
    if options["node"] == 0:
        listener = listen(options["host"])
        _print("Listening", port=listener.getsockname()[1])
        peers = Peers.lead(listener, options["token"], **size, join_seconds=30.0)
    else:
        peers = Peers.join((options["host"], options["port"]), options["token"], node=options["node"], **size)
    threading.Thread(target=_obey, args=(peers,), daemon=True).start()
    while True:
        event = peers.events.get()
        warning = event.skew.warning(event.node, options["node"]) if isinstance(event, PeerJoined) else None
        _print(type(event).__name__, **{**asdict(event), **({"warning": warning} if warning else {})})


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
