"""Agents of a gang in processes of their own, which report what they learn of each other.

Such a process runs this file: its options are one JSON argument; orders come, and events go, as lines of JSON. Options:
token, node, nodes, host of node 0; of any node but 0 also its port; skew: seconds by which its clock is ahead.
"""

import contextlib
import json
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

    def tell(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def send(self, to: int | None, body: dict[str, Any]) -> None:
        self.tell(do="send", to=to, body=body)

    def close(self) -> int:
        """Have it leave in good order; its exit code."""
        self.tell(do="close")
        return self._process.wait(PATIENCE_SECONDS)

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
        order = json.loads(line)
        if order["do"] == "close":
            peers.leave()
            os._exit(0)
        peers.send(order["to"], order["body"])
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
