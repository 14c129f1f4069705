"""Agents among each other: in this process, and in processes that are really killed, stopped and loaded."""

import contextlib
import os
import re
import selectors
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from convoy.gang.network import mesh
from convoy.gang.network.connection import MAX_UNPROVEN_BYTES, FrameReader, frame
from convoy.gang.network.failure_detector import MAX_SECONDS
from convoy.gang.network.formation import (
    GangFormed,
    PayloadReceived,
    PeerGone,
    PeerJoined,
    PeerLeft,
    PeerReportedSilent,
    PeersFailed,
    PeerSilent,
)
from convoy.gang.network.handshake import NONCE_BYTES
from convoy.gang.network.peers import Peers
from convoy.gang.network.sockets import listen
from convoy.job.gang_tokens import new_token
from tests.campaign import times
from tests.gang.agents import PATIENCE_SECONDS, TOKEN, Agent, a_hello, agents, alarms, busy, next_event

pytestmark = pytest.mark.campaign

SEEN_SECONDS = MAX_SECONDS + 3.0
"""For a node that is frozen, however unsteady the beats of a busy machine are."""

AT_ONCE_SECONDS = 10.0
"""Other than for a frozen agent, which nobody wakes."""

LOCAL = "127.0.0.1"

QUIET_SECONDS = 3
"""Under load without a false alarm; ten times this in a campaign."""


class Here:
    """Agents of one gang in this process."""

    def __init__(self, nodes: int, nproc: int = 1) -> None:
        self.nodes = nodes
        self.nproc = nproc
        self.peers: dict[int, Peers] = {}
        self.proxies: list[Proxy] = []
        self.address = ("", 0)

    def lead(self, join_seconds: float = 20.0) -> Peers:
        listener = listen(LOCAL)
        self.address = ("127.0.0.1", listener.getsockname()[1])
        self.peers[0] = Peers.lead(listener, TOKEN, nodes=self.nodes, nproc=self.nproc, join_seconds=join_seconds)
        return self.peers[0]

    def join(self, node: int, token: str = TOKEN, nproc: int = 1, connect_seconds: float = 20.0) -> Peers:
        joined = Peers.join(
            self.address, token, node=node, nodes=self.nodes, nproc=nproc, connect_seconds=connect_seconds
        )
        self.peers[len(self.peers)] = joined
        return joined

    def join_by_proxy(self, node: int) -> "Proxy":
        """The node's connection to node 0 goes through the proxy."""
        proxy, direct = Proxy(self.address), self.address
        self.proxies.append(proxy)
        self.address = proxy.address
        self.join(node)
        self.address = direct
        return proxy

    def all(self) -> list[Peers]:
        """GangFormed."""
        self.lead()
        for node in range(1, self.nodes):
            self.join(node)
        for peers in self.peers.values():
            next_event(peers.events, GangFormed)
        return list(self.peers.values())


@contextlib.contextmanager
def here(nodes: int, nproc: int = 1) -> Iterator[Here]:
    gang = Here(nodes, nproc)
    try:
        yield gang
    finally:
        for peers in gang.peers.values():
            peers.leave()
        for proxy in gang.proxies:
            proxy.close()


def rest(peers: Peers) -> list[object]:
    """What has come since."""
    return [peers.events.get() for _ in range(peers.events.qsize())]


def raw(address: tuple[str, int], data: bytes) -> socket.socket:
    connection = socket.create_connection(address, PATIENCE_SECONDS)
    connection.sendall(data)
    return connection


def next_frame(connection: socket.socket) -> bytes:
    frames, found = FrameReader(), list[bytes]()
    while not found:
        data = connection.recv(frames.missing_bytes)
        assert data, "the connection was closed"
        found = frames.feed(data)
    return found[0]


def await_close(connection: socket.socket) -> None:
    """Until the other end closes it, whatever it sends before."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1000):
            pass


# Coming together.


def test_all_join_all_and_are_formed_once() -> None:
    with here(4) as gang:
        gang.lead()
        for node in (3, 1, 2):
            gang.join(node)
        for node, peers in zip((0, 3, 1, 2), gang.peers.values(), strict=True):
            assert {next_event(peers.events, PeerJoined).node for _ in range(3)} == {0, 1, 2, 3} - {node}
            next_event(peers.events, GangFormed)
        time.sleep(0.5)
        assert [rest(peers) for peers in gang.peers.values()] == [[], [], [], []]


@pytest.mark.processes
def test_who_comes_early_waits_for_who_comes_late() -> None:
    with here(3) as gang:
        leader, first = gang.lead(), gang.join(1)
        next_event(first.events, PeerJoined)
        time.sleep(2.0)  # longer than a silence that is suspected
        gang.join(2)
        assert next_event(leader.events, GangFormed) == next_event(first.events, GangFormed)


def test_who_does_not_know_the_token_is_told_so_and_disturbs_nobody() -> None:
    with here(2) as gang:
        leader = gang.lead()
        failed = next_event(gang.join(1, token=new_token()).events, PeersFailed)
        assert failed.reason.endswith("belongs to another gang: the token is not its own")
        assert "\n" not in failed.reason
        gang.join(1)
        next_event(leader.events, GangFormed)


@pytest.mark.parametrize(
    ("node", "nproc", "why"),
    [(2, 8, "has nproc_per_node = 8, and node 0 on .* 4: all nodes need the same$"), (1, 4, "is there already$")],
    ids=["another number of workers", "another node's number"],
)
def test_a_node_that_does_not_fit_fails_the_gang_with_one_line_on_every_node(node: int, nproc: int, why: str) -> None:
    with here(3, nproc=4) as gang:
        leader, good = gang.lead(), gang.join(1, nproc=4)
        next_event(good.events, PeerJoined)
        bad = gang.join(node, nproc=nproc)
        (reason,) = {next_event(peers.events, PeersFailed).reason for peers in (leader, good, bad)}
        assert re.search(why, reason)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        frame(b"hello"),
        frame(b'{"kind":"beat"}'),
        struct.pack("!I", 90),
        b"",
        frame(bytes(NONCE_BYTES)),
        frame(bytes(NONCE_BYTES)) + frame(b""),
        frame(bytes(NONCE_BYTES)) + frame(bytes(32) + b'{"kind":"beat"}'),
    ],
)
def test_a_stranger_is_sent_away_and_disturbs_nobody(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "HELLO_SECONDS", 0.3)
    with here(2) as gang:
        leader = gang.lead()
        with raw(gang.address, data) as connection:
            await_close(connection)
        gang.join(1)
        next_event(leader.events, GangFormed)


@pytest.mark.parametrize("before", [b"", frame(bytes(NONCE_BYTES))])
def test_a_long_frame_of_a_stranger_ends_its_connection_before_it_is_read(
    before: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh, "HELLO_SECONDS", 60.0)
    with here(2) as gang:
        gang.lead()
        with raw(gang.address, before + struct.pack("!I", MAX_UNPROVEN_BYTES + 1)) as connection:
            await_close(connection)


def test_connections_that_say_nothing_keep_no_node_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "HELLO_SECONDS", 60.0)
    monkeypatch.setattr(mesh, "MAX_UNIDENTIFIED", 8)
    with here(3) as gang, contextlib.ExitStack() as silent:
        leader = gang.lead()
        for data in [b"\0"] * 10 + [frame(bytes(NONCE_BYTES))] * 10:
            silent.enter_context(raw(gang.address, data))
        for node in (1, 2):
            gang.join(node)
        next_event(leader.events, GangFormed)


def test_what_was_overheard_tells_no_token_and_is_of_no_use() -> None:
    with here(3) as gang:
        leader, proxy = gang.lead(), gang.join_by_proxy(1)
        next_event(leader.events, PeerJoined)
        overheard = {way: bytes(data) for way, data in proxy.passed.items()}
        assert TOKEN.encode() not in overheard["up"] + overheard["down"]
        for way in ("up", "down"):
            with raw(gang.address, overheard[way]) as connection:
                await_close(connection)
        gang.join(2)
        assert isinstance(next_event(leader.events, GangFormed | PeersFailed), GangFormed)


def test_an_agent_that_is_answered_with_its_own_words_joins_nobody() -> None:
    with here(2) as gang, listen(LOCAL) as echo:
        gang.address = (LOCAL, echo.getsockname()[1])
        joining = gang.join(1, connect_seconds=0.2)
        connection, _ = echo.accept()
        with connection:
            for _ in range(2):
                connection.sendall(frame(next_frame(connection)))
            await_close(connection)
        echo.close()
        assert "cannot connect to node 0" in next_event(joining.events, PeerJoined | PeersFailed).reason


@pytest.mark.parametrize(
    ("host", "why"), [("127.0.0.1", "connection refused"), ("no-such-host.invalid", "no-such-host.invalid: .+")]
)
def test_a_node_0_that_is_not_there_is_told_with_its_address(host: str, why: str) -> None:
    with here(2) as gang:
        with listen(LOCAL) as free:
            gang.address = (host, free.getsockname()[1])
        failed = next_event(gang.join(1, connect_seconds=0.5).events, PeersFailed)
    expected = rf"node 1 on .* cannot connect to node 0 at {host}:{gang.address[1]} within 0.5 s: {why}"
    assert re.fullmatch(expected, failed.reason), failed.reason


def test_who_takes_the_connection_and_never_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "ANSWER_SECONDS", 0.3)
    with here(2) as gang, listen(LOCAL) as other:
        gang.address = ("127.0.0.1", other.getsockname()[1])
        failed = next_event(gang.join(1).events, PeersFailed)
    assert "took the connection and did not answer as node 0 within 0.3 s" in failed.reason


def test_a_node_that_another_cannot_reach_fails_the_gang_with_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "MESH_SECONDS", 0.5)
    with here(3) as gang:
        leader = gang.lead()
        with listen(LOCAL) as gone:
            nowhere = gone.getsockname()[1]
        hidden = Peers(a_hello(1, 3, hostname="hidden", port=nowhere), TOKEN, listen(LOCAL), gang.address, 20.0)
        gang.peers[1] = hidden
        other = gang.join(2)
        for peers in (leader, hidden, other):
            reason = next_event(peers.events, PeersFailed).reason
            assert f"cannot connect to node 1 at 127.0.0.1:{nowhere} within 0.5 s: connection refused" in reason
            assert reason.startswith("node 2 on ")


def test_a_node_that_ends_before_all_have_come_fails_the_gang() -> None:
    with here(4) as gang:
        leader, stays, leaves = gang.lead(), gang.join(1), gang.join(2)
        next_event(stays.events, PeerJoined)
        next_event(leaves.events, PeerJoined)
        leaves.leave()
        for peers in (leader, stays):
            reason = next_event(peers.events, PeersFailed).reason
            assert reason == "node 2 ended before all 4 nodes had come together"


def test_clocks_are_compared_both_ways() -> None:
    with contextlib.ExitStack() as stack:
        leader = Agent(node=0, nodes=3, host=LOCAL)
        stack.callback(leader.end)
        port = leader.await_one("Listening").fields["port"]
        for node, skew in ((1, -7.5), (2, 1.0)):
            stack.callback(Agent(node=node, nodes=3, host="127.0.0.1", port=port, skew=skew).end)
        behind = leader.await_one("PeerJoined", node=1)
        assert behind.fields["skew"]["seconds"] == pytest.approx(-7.5, abs=0.2)
        assert re.match(r"the clock of node 1 is 7\.\d s behind node 0's", behind.fields["warning"])
        ahead = leader.await_one("PeerJoined", node=2)
        assert ahead.fields["skew"]["seconds"] == pytest.approx(1.0, abs=0.2)
        assert "warning" not in ahead.fields


# Telling each other.


def test_what_is_said_comes_in_order_whole_and_only_to_whom_it_is_said() -> None:
    with here(3) as gang:
        zero, one, two = gang.all()
        large = "x" * 900_000
        began = time.monotonic()
        for number in range(20):
            one.send(2, {"number": number, "text": large if number % 5 == 0 else ""})
        one.send(None, {"to": "all"})
        for number in range(20):
            said = next_event(two.events, PayloadReceived)
            assert (said.node, said.body["number"]) == (1, number)
            assert len(said.body["text"]) == (900_000 if number % 5 == 0 else 0)
            assert began <= said.at <= time.monotonic()
        assert next_event(two.events, PayloadReceived).body == {"to": "all"}
        assert next_event(zero.events, PayloadReceived).body == {"to": "all"}  # each connection has its own pace
        assert not [event for event in rest(zero) + rest(two) if isinstance(event, PayloadReceived)]
        assert not [event for event in rest(one) if isinstance(event, PayloadReceived)]
        with pytest.raises(ValueError, match="must be at most"):
            one.send(2, {"text": large * 2})


def test_what_is_said_last_comes_before_the_goodbye() -> None:
    with here(2) as gang:
        zero, one = gang.all()
        for number in range(10):
            one.send(0, {"number": number})
        one.leave()
        assert [next_event(zero.events, PayloadReceived).body["number"] for _ in range(10)] == list(range(10))
        assert next_event(zero.events, PeerLeft) == PeerLeft(1)


def test_a_goodbye_is_no_loss_also_when_all_say_it_at_once() -> None:
    for _ in range(times(5)):
        with here(4) as gang:
            everyone = gang.all()
            threads = [threading.Thread(target=peers.leave) for peers in everyone]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seen = [event for peers in everyone for event in rest(peers)]
            assert all(isinstance(event, PeerJoined | GangFormed | PeerLeft) for event in seen), seen


def test_closing_leaves_no_thread_and_no_file_and_sending_after_it_does_no_harm() -> None:
    def left() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), sum(t.name == "peers" for t in threading.enumerate())

    before = left()
    with here(3) as gang:
        for peers in gang.all():
            peers.leave()
            peers.leave()
            peers.send(None, {"too": "late"})
        assert left() == before


# Losing each other: real processes.


def test_a_killed_agent_is_seen_at_once_by_all_and_is_no_silence() -> None:
    for victim in (0, 2):
        with agents(3) as gang:
            killed = gang[victim].signal(signal.SIGKILL)
            others = [agent for agent in gang if agent.node != victim]
            for agent in others:
                gone = agent.await_one("PeerGone", node=victim)
                assert gone.at - killed < 1.0  # silence would take longer
                assert gone.fields["how"] in ("its connection was closed", "connection reset by peer")
            assert not [agent.seen for agent in others if agent.of("PeerSilent")]


def test_a_stopped_agent_is_suspected_by_all_and_learns_it_when_it_goes_on() -> None:
    with agents(3) as gang:
        zero, frozen, two = gang
        stopped = frozen.signal(signal.SIGSTOP)
        for agent, other in ((zero, 2), (two, 0)):
            silent = agent.await_one("PeerSilent", node=1)
            assert 1.2 < silent.fields["seconds"] < SEEN_SECONDS
            assert silent.fields["phi"] >= 8.0 or silent.fields["seconds"] >= MAX_SECONDS
            assert silent.at - stopped < SEEN_SECONDS
            assert agent.await_one("PeerReportedSilent", node=1).fields["by"] == other
        resumed = frozen.signal(signal.SIGCONT)
        assert {frozen.await_one("PeerReportedSilent", node=1, by=by).fields["by"] for by in (0, 2)} == {0, 2}
        time.sleep(2.0)
        assert frozen.of("PeerSilent") == []  # it slept; the others did not
        assert zero.of("PeerSilent", since=resumed) == two.of("PeerSilent", since=resumed) == []


def test_agents_that_all_slept_suspect_nobody() -> None:
    with agents(3) as gang:
        for agent in gang:
            agent.signal(signal.SIGSTOP)
        time.sleep(3.0)
        for agent in gang:
            agent.signal(signal.SIGCONT)
        time.sleep(1.0)
        assert alarms(gang) == []


def test_sending_and_leaving_never_wait_for_a_frozen_agent() -> None:
    with here(2) as gang:
        zero = gang.lead()
        frozen = Agent(node=1, nodes=2, host="127.0.0.1", port=gang.address[1])
        try:
            next_event(zero.events, GangFormed)
            frozen.signal(signal.SIGSTOP)
            began = time.monotonic()
            for _ in range(20):
                zero.send(1, {"text": "x" * 900_000})
            assert time.monotonic() - began < AT_ONCE_SECONDS
            assert "bytes unread" in next_event(zero.events, PeerGone).how
            began = time.monotonic()
            zero.leave()
            assert time.monotonic() - began < AT_ONCE_SECONDS
        finally:
            frozen.end()


def test_nobody_is_suspected_on_a_host_under_load() -> None:
    """Twice as many busy processes as cores, while the agents talk."""
    with agents(4) as gang, busy(2 * (os.cpu_count() or 1)):
        until = time.monotonic() + times(QUIET_SECONDS)
        number = 0
        while time.monotonic() < until:
            gang[number % 4].send(None, {"text": "x" * 100_000})
            number += 1
            time.sleep(0.5)
        assert alarms(gang) == []


# Losing one direction only.


class Proxy:
    """Between one connection and node 0: it can stop passing on in either direction."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._target = target
        self.stalled: set[str] = set()
        self.passed = {"up": bytearray(), "down": bytearray()}
        """The bytes that went each way."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(self._target)
        with selectors.DefaultSelector() as selector, near, far:
            selector.register(near, selectors.EVENT_READ, ("up", far))
            selector.register(far, selectors.EVENT_READ, ("down", near))
            while not self._ended.is_set():
                for key, _ in selector.select(0.05):
                    way, out = key.data
                    if way in self.stalled:
                        time.sleep(0.01)
                        continue
                    assert isinstance(key.fileobj, socket.socket)
                    data = key.fileobj.recv(65536)
                    if not data:
                        return
                    self.passed[way] += data
                    out.sendall(data)

    def close(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_SECONDS)
        self._listener.close()


@pytest.mark.processes
def test_two_agents_that_do_not_hear_each_other_are_told_so_by_the_third() -> None:
    with here(3) as gang:
        zero, proxy, two = gang.lead(), gang.join_by_proxy(1), gang.join(2)
        one = gang.peers[1]
        for peers in (zero, one, two):
            next_event(peers.events, GangFormed)
        proxy.stalled |= {"up", "down"}
        seen = {peers: told_in(peers, 2) for peers in (zero, one, two)}
        time.sleep(0.5)
        assert rest(zero) == rest(one) == rest(two) == []
    assert seen == {
        zero: {("silent", 1), ("unheard", 0, 1)},
        one: {("silent", 0), ("unheard", 1, 0)},
        two: {("unheard", 0, 1), ("unheard", 1, 0)},
    }


def told_in(peers: Peers, count: int) -> set[tuple[object, ...]]:
    """The next so many silences that it learns of, in any order."""
    found: set[tuple[object, ...]] = set()
    for _ in range(count):
        event = next_event(peers.events, PeerSilent | PeerReportedSilent)
        found.add(("silent", event.node) if isinstance(event, PeerSilent) else ("unheard", event.node, event.by))
    return found
