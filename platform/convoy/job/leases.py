"""Leases: while a reader holds one on a commit, nothing prunes that commit.

A reader takes its lease first and then looks whether the commit is there; what prunes removes the commit first and then
looks for leases. So one of the two always sees the other. See `convoy.checkpoint.writer.prune`.
"""

import contextlib
import os
import socket
import threading
import uuid
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from convoy.job.lineage import CommitRef
from convoy.storage import ObjectMissing, Store, StoreUnavailable

TERM_SECONDS = 300.0
"""A lease that is not renewed for so long is a dead reader's."""

FORGOTTEN_SECONDS = 3600.0
"""Expired for so long, a lease's object is removed: its reader could no longer renew it."""


class Lease(BaseModel):
    """`leases/<reader>.json`. It holds until `seconds` after the object was last written, by the store's own clock."""

    model_config = ConfigDict(frozen=True)

    ref: CommitRef
    seconds: float = Field(gt=0, allow_inf_nan=False)
    host: str
    pid: int


@contextlib.contextmanager
def lease(store: Store, ref: CommitRef, term_seconds: float = TERM_SECONDS) -> Iterator[None]:
    """Keep commit `ref` from being pruned on this tier while the block runs, whether it is there or not.

    Renewed by a thread; while the store is out of reach for longer than the term the lease may expire. Raises
    StoreUnavailable on entry.
    """
    name = f"leases/{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}.json"
    held = Lease(ref=ref, seconds=term_seconds, host=socket.gethostname(), pid=os.getpid())
    data, done, writing = held.model_dump_json().encode(), threading.Event(), threading.Lock()
    store.write(name, data)

    def renew() -> None:
        while not done.wait(term_seconds / 3):
            with writing, contextlib.suppress(StoreUnavailable):
                if not done.is_set():
                    store.write(name, data)

    threading.Thread(target=renew, name=f"lease {ref.stem}", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        with writing, contextlib.suppress(StoreUnavailable):  # it expires by itself
            store.delete(name)


def leased_commits(store: Store) -> frozenset[CommitRef]:
    """The commits that a reader holds on this tier now. Removes leases that expired long ago."""
    held = set[CommitRef]()
    if not store.sizes("leases/"):
        return frozenset()  # to ask for the time may write
    now = store.now()  # before they are read, which may take longer than a lease
    for name, modified, each in _read_leases(store):
        expires = modified + each.seconds
        if now <= expires:
            held.add(each.ref)
        elif now > expires + FORGOTTEN_SECONDS:
            store.delete(name)
    return frozenset(held)


def commits_of_all_leases(store: Store) -> frozenset[CommitRef]:
    """The commits that any lease on this tier is of, expired ones too. Writes nothing, as asking for the time may."""
    return frozenset(each.ref for _, _, each in _read_leases(store))


def _read_leases(store: Store) -> Iterator[tuple[str, float, Lease]]:
    """Each with its object's name and when that was last written."""
    for name, info in store.listing("leases/").items():
        with contextlib.suppress(ObjectMissing, ValueError):  # given back meanwhile; or not a lease
            yield name, info.modified, Lease.model_validate_json(store.read(name))
