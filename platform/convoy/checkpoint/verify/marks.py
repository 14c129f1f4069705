"""Marks of a commit on one tier: that it is damaged, or that every byte of it was read back.

A host of a gang that finds damage alone only suspects it: its memory or its network may be at fault. Marks lie next
to what they are about and are never changed. A damage mark outlives its commit: it is the evidence.
"""

import os
import re
import socket
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from convoy.job.lineage import CommitRef, damaged_commits, damaged_name
from convoy.storage import ObjectMissing, Store


class Evidence(BaseModel):
    """`damaged/<g>-<step>.json`: what was found, by whom."""

    model_config = ConfigDict(frozen=True)

    ref: CommitRef
    tier: str
    """URI of the job on the tier that holds the damaged copy."""
    error: str
    """The damage: one line."""
    host: str
    pid: int
    at: float
    """Unix time by the tier's own clock."""
    confirmed_by: str = ""
    """Another host that reads it so; empty: all reads were one host's."""


def mark_damaged(store: Store, ref: CommitRef, error: str, *, host: str = "", confirmed_by: str = "") -> Evidence:
    """Take a commit out of what counts on this tier, for good. Returns the evidence: the first finder's, if another was
    first. Only for damage that a second read confirmed (see `convoy.checkpoint.commits`), in a gang of several hosts
    that of another host, `confirmed_by`. host: of the finder; empty: this one."""
    ours = _make_evidence(store, ref, error, host, confirmed_by)
    if store.create(damaged_name(ref), ours.model_dump_json(indent=1).encode()):
        return ours
    return read_damage(store, ref) or ours


def read_damage(store: Store, ref: CommitRef) -> Evidence | None:
    """The evidence against a commit; None: it is not marked. A mark counts even where what it says cannot be read."""
    try:
        return Evidence.model_validate_json(store.read(damaged_name(ref)))
    except ObjectMissing:
        return None
    except ValueError:
        unreadable = f"{store.uri}/{damaged_name(ref)} marks it, and is not readable itself"
        return Evidence(ref=ref, tier=store.uri, error=unreadable, host="", pid=0, at=0.0)


@dataclass(frozen=True)
class Suspicion:
    """`suspected/<g>-<step>/<part>-<host>.json`: what one host found, in the form of `Evidence`."""

    ref: CommitRef
    part: int
    host: str
    """A `host_key`."""
    name: str


def suspect(store: Store, ref: CommitRef, part: int, error: str, host: str) -> Evidence | None:
    """Note that a host cannot read a part as it was written. Where another host has noted the same, the commit is
    marked as damaged: the evidence; None: it is suspected only."""
    ours = _make_evidence(store, ref, error, host)
    store.create(f"{_suspected_folder(ref)}{part:05d}-{host_key(host)}.json", ours.model_dump_json(indent=1).encode())
    # Of two that note it at the same time at least one sees the other.
    for other in suspicions(store, ref):
        if other.part == part and other.host != host_key(host):
            first = read_suspicion(store, other)
            if first is not None:
                marked = mark_damaged(store, ref, first.error, host=first.host, confirmed_by=ours.host)
                dismiss_suspicions(store, *suspicions(store, ref))
                return marked
    return None


def suspicions(store: Store, ref: CommitRef | None = None) -> list[Suspicion]:
    """The suspicions of one commit, or of all on this tier."""
    folder = "suspected/" if ref is None else _suspected_folder(ref)
    matches = (re.fullmatch(r"suspected/(\d+)-(\d+)/(\d+)-(.+)\.json", name) for name in store.sizes(folder))
    return [Suspicion(CommitRef(generation=int(m[1]), step=int(m[2])), int(m[3]), m[4], m[0]) for m in matches if m]


def read_suspicion(store: Store, suspicion: Suspicion) -> Evidence | None:
    """None: it was settled meanwhile, or cannot be read itself: then its name is all there is."""
    try:
        return Evidence.model_validate_json(store.read(suspicion.name))
    except (ObjectMissing, ValueError):
        return None


def dismiss_suspicions(store: Store, *settled: Suspicion) -> None:
    """They are settled, either way."""
    for suspicion in settled:
        store.delete(suspicion.name)


def host_key(host: str) -> str:
    """A host's name as part of an object's name."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", host)


def reinstate(store: Store, ref: CommitRef) -> Evidence | None:
    """Take back that a commit is damaged: the evidence there was. Only for one of which every byte was read back."""
    evidence = read_damage(store, ref)
    store.delete(damaged_name(ref))
    return evidence


def damaged_in(store: Store) -> frozenset[CommitRef]:
    """The commits that are marked as damaged on this tier."""
    return damaged_commits(store)


def mark_part_verified(store: Store, ref: CommitRef, part: int, parts: int) -> bool:
    """Note that every byte of a part was read back; whether all `parts` of the commit have been, by anyone.

    Parts may be marked at the same time: whoever marks last sees all the others.
    """
    folder = _verified_folder(ref)
    store.create(f"{folder}{part:05d}.json", b"{}")
    whole = len(_part_numbers(store.sizes(folder))) >= parts
    if whole:
        store.create(f"{folder}all.json", b"{}")
    return whole


def verified_in(store: Store) -> frozenset[CommitRef]:
    """The commits whose every part was read back on this tier, and that nobody found damaged, or suspects."""
    matches = (re.fullmatch(r"verified/(\d+)-(\d+)/all\.json", name) for name in store.sizes("verified/"))
    whole = frozenset(CommitRef(generation=int(m[1]), step=int(m[2])) for m in matches if m)
    return whole - damaged_in(store) - {suspicion.ref for suspicion in suspicions(store)} if whole else whole


def verified_parts(store: Store, ref: CommitRef) -> frozenset[int]:
    """The parts of a commit that were read back on this tier."""
    return _part_numbers(store.sizes(_verified_folder(ref)))


def delete_marks(store: Store, ref: CommitRef) -> None:
    """Take back what was noted of a commit that is gone, so that it can never speak for another of its name."""
    for folder in (_verified_folder(ref), _suspected_folder(ref)):
        for name in store.sizes(folder):
            store.delete(name)


def commits_with_marks(store: Store) -> frozenset[CommitRef]:
    """The commits of which a part was verified, or is suspected."""
    names = [*store.sizes("verified/"), *store.sizes("suspected/")]
    matches = (re.match(r"(?:verified|suspected)/(\d+)-(\d+)/", name) for name in names)
    return frozenset(CommitRef(generation=int(m[1]), step=int(m[2])) for m in matches if m)


def _make_evidence(store: Store, ref: CommitRef, error: str, host: str, confirmed_by: str = "") -> Evidence:
    return Evidence(
        ref=ref,
        tier=store.uri,
        error=error,
        host=host or socket.gethostname(),
        pid=os.getpid(),
        at=store.now(),
        confirmed_by=confirmed_by,
    )


def _verified_folder(ref: CommitRef) -> str:
    return f"verified/{ref.stem}/"


def _suspected_folder(ref: CommitRef) -> str:
    return f"suspected/{ref.stem}/"


def _part_numbers(names: dict[str, int]) -> frozenset[int]:
    matches = (re.search(r"/(\d{5})\.json$", name) for name in names)
    return frozenset(int(m[1]) for m in matches if m)
