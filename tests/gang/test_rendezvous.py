"""How the nodes of a gang find each other through the job's root: who may read what, and who listens where."""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from convoy.config.run import RunConfig
from convoy.gang import rendezvous
from convoy.gang.network.formation import GangFormed, PeerEvent, PeerJoined, PeersFailed
from convoy.gang.network.handshake import Skew
from convoy.gang.network.peers import Peers
from convoy.gang.rendezvous import FormedGeneration, await_gang_formed
from convoy.gang.task import Task
from convoy.gang.workers.worker_group import NodeContext
from convoy.job.generations import FormationError, refuse_formation
from convoy.job.lineage import Generation
from convoy.storage import Store, open_store
from convoy.storage.posix import PosixStore
from tests.gang.tasks import a_node, wait_for

LOOPBACK = "0100007F:"
"""As /proc/net/tcp writes the address."""


def a_site(root: Path, index: int, nodes: int, main_host: str = "127.0.0.1") -> NodeContext:
    """Of a node that gathers, and starts no worker."""
    task = Task(RunConfig(), "job", str(root), "", "", None)
    node = replace(a_node(nproc=1, index=index, nodes=nodes), main_host=main_host)
    return NodeContext(task, node, (open_store(str(root / "job")),), root, cast(Any, None), cast(Any, None))


class Nodes:
    """Nodes that gather, each in a thread."""

    def __init__(self, root: Path, nodes: int) -> None:
        self.root, self.nodes = root, nodes
        self.store: Store = open_store(str(root / "job"))
        self.gathered: dict[int, tuple[FormedGeneration, Peers] | Exception] = {}
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, index: int) -> None:
        gather = rendezvous.join_first_generation if index else rendezvous.form_first_generation
        self._threads.append(threading.Thread(target=self._gather, args=(gather, index)))
        self._threads[-1].start()

    def formed(self) -> Generation:
        """What all are part of."""
        for thread in self._threads:
            thread.join()
        (generation,) = {cast(tuple[FormedGeneration, Peers], each)[0].generation for each in self.gathered.values()}
        return generation

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        for each in self.gathered.values():
            if isinstance(each, tuple):
                each[0].close_listener()
                each[1].leave()

    def _gather(self, gather: Callable[..., tuple[FormedGeneration, Peers]], index: int) -> None:
        try:
            self.gathered[index] = gather(a_site(self.root, index, self.nodes), self._pause)
        except Exception as error:
            self.gathered[index] = error

    def _pause(self, seconds: float) -> None:
        if self._ended.is_set():
            raise FormationError("the test is over")
        time.sleep(seconds)


@contextlib.contextmanager
def gathering(root: Path, nodes: int) -> Iterator[Nodes]:
    there = Nodes(root, nodes)
    try:
        yield there
    finally:
        there.end()


def token_files(root: Path) -> list[Path]:
    return sorted((root / "job" / "tokens").glob("*"))


def listening() -> set[str]:
    """Where this process listens, as /proc/net writes it."""
    inodes = set()
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(file.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.add(words[1])
    return found


def test_the_token_is_for_the_owner_alone_and_goes_when_all_have_come(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with gathering(tmp_path, 2) as gang:
            gang.start(0)
            wait_for("the generation", lambda: gang.store.sizes("generations/"))
            (file,) = token_files(tmp_path)
            token = file.read_text()
            assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
            others = [path for path in (tmp_path / "job").rglob("*") if path.is_file() and path != file]
            assert token
            assert others
            assert not any(token in path.read_text() for path in others)
            gang.start(1)
            assert gang.formed().generation == 1
            wait_for("the removal of the token", lambda: not token_files(tmp_path))
    finally:
        os.umask(before)


def test_the_token_goes_too_when_nobody_comes_and_a_node_that_is_late_learns_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "LOCAL_JOIN_SECONDS", 0.2)
    with pytest.raises(FormationError, match=r"node 1 of 2 did not come within 0\.2 s"):
        rendezvous.form_first_generation(a_site(tmp_path, 0, 2), time.sleep)
    assert token_files(tmp_path) == []
    with pytest.raises(FormationError, match=r"/job/tokens/000001-\w+: is gone: node 0 stopped waiting, or anoth"):
        rendezvous.join_first_generation(a_site(tmp_path, 1, 2), time.sleep)
    refuse_formation(open_store(str(tmp_path / "job")), a_node().formation, "node 0 had no GPU")
    with pytest.raises(FormationError, match=r"^node 0 had no GPU$"):
        rendezvous.join_first_generation(a_site(tmp_path, 1, 2), time.sleep)


def test_a_gang_removes_what_a_killed_one_left_and_not_what_a_newer_one_needs(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "job")
    for name in ("tokens/000001-left", "tokens/000002-newer"):
        assert store.create(name, b"secret", private=True)
    with gathering(tmp_path, 1) as gang:
        gang.start(0)
        assert gang.formed().token_name == ""  # nobody else is to come
        wait_for("the removal", lambda: [file.name for file in token_files(tmp_path)] == ["000002-newer"])


def test_every_node_listens_where_the_others_are_told_and_nowhere_else(tmp_path: Path) -> None:
    before = listening()
    with gathering(tmp_path, 3) as gang:
        gang.start(0)
        gang.start(1)
        # Of node 0 for the agents, of node 0 for rank 0's store, and of node 1, for which node 2 would look.
        places = wait_for("three listeners", lambda: found if len(found := listening() - before) == 3 else None)
        assert {place[: len(LOOPBACK)] for place in places} == {LOOPBACK}, places
        gang.start(2)
        gang.formed()


def test_an_address_that_is_not_this_machine_s_own_is_told_and_all_are_listened_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    formed, peers = rendezvous.form_first_generation(a_site(tmp_path, 0, 1, main_host="192.0.2.7"), time.sleep)
    with peers:
        assert formed.generation.control.startswith("192.0.2.7:")
        assert formed.listener is not None
        with socket.create_connection(("127.0.0.1", formed.listener.getsockname()[1]), 5) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        formed.close_listener()
    assert capsys.readouterr().err == (
        f"convoy: node 0 on {socket.gethostname()} listens on all addresses: 192.0.2.7, where the others are to reach "
        "it, is none of its own\n"
    )


def test_a_generation_of_an_older_version_is_not_joined(tmp_path: Path) -> None:
    store, node = open_store(str(tmp_path / "job")), a_node(index=1, nodes=2)
    older = Generation(
        generation=1,
        parent=None,
        formation=node.formation,
        nodes=2,
        world_size=2,
        config_hash="c",
        created=1.0,
        control="127.0.0.1:1",
    )
    assert store.create(older.name, older.model_dump_json().encode())
    with pytest.raises(FormationError, match="was formed by another version of Convoy: all nodes need the same"):
        rendezvous.join_first_generation(a_site(tmp_path, 1, 2), time.sleep)


def peers(*events: PeerEvent) -> Any:
    """A Peers that tells this."""
    told: SimpleQueue[PeerEvent] = SimpleQueue()
    for event in events:
        told.put(event)
    made = SimpleNamespace(events=told, left=False)
    made.leave = lambda: setattr(made, "left", True)
    return made


def nothing(seconds: float) -> None:
    """Nothing keeps the node from waiting."""


def test_a_clock_that_is_wrong_is_told_in_one_line_by_node_0_alone(capsys: pytest.CaptureFixture[str]) -> None:
    skews = (Skew(-7.5, 0.01), Skew(0.2, 0.01), Skew(9.0, 6.0))
    joined = [PeerJoined(node, skew) for node, skew in enumerate(skews, 1)]
    for index in (0, 1):
        made = peers(*joined, GangFormed())
        await_gang_formed(cast(Peers, made), a_node(index=index, nodes=4), nothing)
        assert not made.left
    assert capsys.readouterr().err == (
        "convoy: the clock of node 1 is 7.5 s behind node 0's: events of several nodes may appear in the wrong "
        "order; check their time synchronisation\n"
    )


def test_nodes_that_will_not_come_together_are_told_and_the_connections_closed() -> None:
    made = peers(PeerJoined(1, Skew(0.0, 0.0)), PeersFailed("node 2 did not come within 600 s"))
    with pytest.raises(FormationError, match=r"^node 2 did not come within 600 s$"):
        await_gang_formed(cast(Peers, made), a_node(nodes=3), nothing)
    assert made.left


def test_what_ends_the_waiting_closes_the_connections() -> None:
    def notice(seconds: float) -> None:
        raise KeyError("notice")

    made = peers()
    with pytest.raises(KeyError):
        await_gang_formed(cast(Peers, made), a_node(nodes=3), notice)
    assert made.left
