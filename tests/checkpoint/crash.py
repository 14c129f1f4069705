"""Crash enumeration: `python -m tests.checkpoint.crash URI [ROUNDS]` prints what was tried, as JSON.

Two ranks save; one is killed with SIGKILL at every mutating operation in turn, in a bucket also after it was applied
but before its answer was seen; the other rank goes on by itself, or is killed as well. After each, what is restored
must be exactly a state that was committed, every visible commit must be whole, and the next save must succeed. A
process of its own, because it forks twice for each point: it is small, and has no threads.
"""

import collections
import copy
import gc
import json
import mmap
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from convoy.checkpoint.writer.parts import AbandonedError, write_part
from convoy.job.lineage import CommitRef, parse_commits
from convoy.storage import Store, is_shared, open_store
from tests.checkpoint.kills import WRITES, Kill, Moment
from tests.checkpoint.torchless import TinyState, commit_when_complete, form, newest, restored

STATE = TinyState(sizes=(600_000, 3000), chunk_bytes=300_000)
"""Writer 0 has two chunks, which S3 gets as a multipart upload, and Google as a resumable one of three requests; writer
1 has one, in one request."""

RESUMABLE_BYTES = 2**18
"""Of a request of a resumable upload: Google takes no fewer."""

BEFORE, DURING, AFTER = 5, 6, 7
"""Steps: committed before, being saved when the kill comes, and saved next."""

HANG_SECONDS = 30
_LOOKS_WITHOUT_PEER = 3


class Enumeration:
    """All points of one store, each in a folder of its own."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        # Never used here: its connections are not to be shared with the forks.
        self._untouched = open_store(uri)
        self._used = open_store(uri)
        self.points: collections.Counter[str] = collections.Counter()
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self._round = 0

    def run(self, number: int = 0) -> None:
        """Every point: each rank, each of its operations, each moment of those, and both fates of the other rank.

        number: of the round. Who saves next is in turns this gang and a new one, at each point another one in the
        round after.
        """
        self._round = number
        for rank in range(STATE.writers):
            for peer_dies in (False, True):
                at = 0
                while operation := self._point(rank, at, "before", peer_dies):
                    if operation in WRITES:
                        self._point(rank, at, "half", peer_dies)
                    if is_shared(self._uri):
                        self._point(rank, at, "after", peer_dies)
                    at += 1

    def _point(self, rank: int, at: int, moment: Moment, peer_dies: bool) -> str:
        """Try one point; the operation that the rank was killed at, empty if it ended before."""
        name = f"{rank}-{at}-{moment}-{peer_dies}-{sum(self.points.values())}"
        store, kill = _below(self._used, name), Kill(at, moment)
        generation = form(store)
        STATE.save(store, BEFORE, generation=generation)
        done = _save_and_kill(_below(self._untouched, name), generation, rank, kill, peer_dies)
        if kill.operation:
            self.points[f"{kill.operation}, {moment}"] += 1
        try:
            anew = (self._round + rank + at + (moment == "before") + peer_dies) % 2 == 1
            after = _check(store, generation, done, anew)
            self.outcomes[f"restored step {after}"] += 1
        except Exception as error:  # to be told with the point, and the others tried all the same
            self.wrong.append(f"{name} ({kill.operation}): {type(error).__name__}: {error}")
        return kill.operation


def _save_and_kill(store: Store, generation: int, victim: int, kill: Kill, peer_dies: bool) -> bool:
    """Two ranks save, and the victim is killed. True: the coordinator said that there is a commit."""
    alone = mmap.mmap(-1, 1)
    pids = {
        rank: _fork(lambda rank=rank: _rank(store, generation, rank, kill if rank == victim else None, alone))
        for rank in range(STATE.writers)
    }
    codes = {victim: _wait(pids[victim])}
    alone[0] = 1
    peer = 1 - victim
    if peer_dies and codes[victim] != 0:
        os.kill(pids[peer], signal.SIGKILL)
    codes[peer] = _wait(pids[peer])
    return codes[0] == 0


def _rank(store: Store, generation: int, rank: int, kill: Kill | None, alone: mmap.mmap) -> None:
    """One rank's writer. Without its peer it looks a few times more whether that one's part is there."""
    looks = 0

    def check() -> None:
        nonlocal looks
        looks += alone[0]
        if looks > _LOOKS_WITHOUT_PEER:
            raise AbandonedError("the other rank is dead")

    if kill is not None:
        kill.watch()
    request = STATE.request(store.uri, rank, DURING, generation=generation, attempt="killed")
    data = memoryview(STATE.data(rank, DURING))
    write_part(store, request, STATE.layout(rank), data, 2, chunk_bytes=STATE.chunk_bytes)
    if rank == 0:
        commit_when_complete(store, store, request, check=check)


def _check(store: Store, generation: int, done: bool, anew: bool) -> int:
    """What is restored; raises AssertionError, or what restoring raised, if it is not as it must be.

    anew: a new gang is formed, which trains the lost step again; else this one goes on with a new writer.
    """
    for ref in parse_commits(store.sizes("commits/")):
        _assert_whole(store, ref)
    found = newest(store)
    assert found is not None, "the checkpoint from before is lost"
    assert found.step in (BEFORE, DURING), f"{found.name} was never saved"
    assert found.step == DURING or not done, "a commit that was told of is lost"
    if anew:
        generation = form(store)
    assert STATE.save(store, AFTER, generation=generation, attempt="next").step == AFTER
    latest = newest(store)
    assert latest == CommitRef(generation=generation, step=AFTER)
    _assert_whole(store, latest)
    return found.step


def _assert_whole(store: Store, ref: CommitRef) -> None:
    wanted = [STATE.data(rank, ref.step) for rank in range(STATE.writers)]
    assert restored(store, ref) == wanted, f"{ref.name} is not what was saved"


def _fork(function: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        gc.freeze()
        signal.alarm(HANG_SECONDS)
        code = 1
        try:
            function()
            code = 0
        except AbandonedError:
            code = 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def _wait(pid: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (0, 2, -signal.SIGKILL):
        raise RuntimeError(f"a rank ended with {code}")
    return code


def _below(store: Store, name: str) -> Any:
    """The store in a folder below its own; of a bucket with the same client, which takes long to make."""
    below: Any = copy.copy(store)
    below.uri = f"{store.uri}/{name}"
    if hasattr(below, "folder"):
        below.folder = below.folder / name
        below._seen = False
    else:
        below._prefix = f"{below._prefix}{name}/"
    return below


def use_small_uploads() -> None:
    """Objects of more than 256 KiB go to Google as resumable uploads, in requests of as many."""
    from google.cloud.storage import blob

    from convoy.storage import gcs_client

    blob._MAX_MULTIPART_SIZE = gcs_client._UPLOAD_BYTES = RESUMABLE_BYTES


def main() -> None:
    if sys.argv[1].startswith("gs://"):
        use_small_uploads()
    enumeration = Enumeration(sys.argv[1])
    for number in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
        enumeration.run(number)
    told = {"points": enumeration.points, "outcomes": enumeration.outcomes, "wrong": enumeration.wrong}
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
