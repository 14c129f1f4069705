"""Whatever text the objects of a store hold, nothing that reads them asks for an object outside of the store."""

import contextlib
import functools
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.commits import read_commit, read_commit_and_parts
from convoy.checkpoint.format import DamagedCommitError, removal_mark_name
from convoy.checkpoint.listing import list_commits
from convoy.checkpoint.verify.commit import verify_commit
from convoy.checkpoint.verify.marks import damaged_in, mark_damaged, mark_part_verified, suspect
from convoy.checkpoint.writer.copy import CopyFailedError, copy_commit
from convoy.checkpoint.writer.prune import prune
from convoy.cli.options import newest_configuration
from convoy.config.checkpoint import RetentionConfig
from convoy.config.data import DataConfig
from convoy.config.json_text import canonical_json
from convoy.data.local_cache import ensure_local_data
from convoy.data.manifest import DataDamaged, read_manifest
from convoy.data.prepare import _read_indexed_manifest, prepare_dataset
from convoy.job.generations import rewind
from convoy.job.heartbeat import LiveMark, read_mark
from convoy.job.leases import Lease
from convoy.job.lineage import CommitRef, damaged_name, read_history
from convoy.job.record import RECORD, JobRecord, read_record
from convoy.launch.reruns.policy import read_run_facts
from convoy.storage import StoreUnavailable
from convoy.storage.checksum import crc32c
from tests.campaign import examples
from tests.checkpoint.shims import Hooked
from tests.checkpoint.stage import MemoryStore
from tests.checkpoint.torchless import TinyState, form

pytestmark = pytest.mark.campaign

Json = Any
STATE = TinyState(sizes=(50, 30))
REFS = [CommitRef(generation=1, step=step) for step in (10, 20)]
BAD = ["../../../../victim", "/victim", "..", ".", "a/b", "a/../../../../victim", "a\0b", "a" * 300, ""]
ERRORS = (StoreUnavailable, DamagedCommitError, CopyFailedError, DataDamaged, ValueError)
"""What says that an object is not what it should be; ConfigError is a ValueError."""


def is_below(name: str) -> bool:
    """Of the name of an object, or of the beginning of names."""
    *folders, last = name.split("/")
    parts = [*folders, last or "any"]
    return all(part not in ("", ".", "..") and "\0" not in part and len(part) <= 255 for part in parts)


@functools.cache
def job() -> MemoryStore:
    """A job with an object of each kind."""
    store: Any = MemoryStore()
    form(store)
    store.write("configs/c.json", b'{"checkpoint": {"retention": {"keep_last": 1}}}')
    for ref in REFS:
        STATE.save(store, ref.step)
    STATE.write(store, STATE.request("memory", 0, 40))
    mark_part_verified(store, REFS[1], 0, 2)
    mark_damaged(store, REFS[0], "a flipped bit")
    suspect(store, REFS[1], 1, "a flipped bit", "host")
    record = JobRecord(job="blue", created=0.0, seed=0, global_batch=1, fingerprint="f", model="tiny", steps=1)
    live = LiveMark(run="Flow/1", host="host", pid=1, pid_started="", beat=0.0)
    lease = Lease(ref=REFS[1], seconds=1e9, host="host", pid=1)
    for name, model in {RECORD: record, "LIVE.json": live, "leases/reader.json": lease}.items():
        store.write(name, model.model_dump_json().encode())
    data_id = prepare_dataset(data_config(None), store).id
    for ref in REFS:
        store.write(ref.name, sealed(json.loads(store.read(ref.name)) | {"data_id": data_id}))
    store.clock += 10_000.0
    store.objects[removal_mark_name(REFS[1])] = (store.read(REFS[1].name), 0.0)
    return store


def data_config(cache: str | None) -> DataConfig:
    corpus = {"kind": "synthetic", "vocab_size": 64, "tokens": 200}
    return DataConfig.model_validate({"corpus": corpus, "sequence_length": 8, "cache": cache})


def texts(tree: Json) -> Iterator[Callable[[str], None]]:
    """For each text in the tree, what puts another one in its place. Of keys only for those of files: each other one is
    a field's, without which the object is none."""
    for key, value in list(tree.items()) if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            yield from texts(value)
        elif isinstance(value, str):
            yield functools.partial(tree.__setitem__, key)
        if isinstance(tree, dict) and "." in str(key):
            yield lambda new, key=key: tree.update({new: tree.pop(key)})  # type: ignore[misc]


def sealed(content: Json) -> bytes:
    """A commit with the checksum that belongs to it."""
    content.pop("checksum", None)
    digest = hashlib.sha256(canonical_json(content).encode()).hexdigest()
    return json.dumps(content | {"checksum": digest}).encode()


def rewritten(store: MemoryStore, name: str, tree: Json) -> None:
    """Put the object in its place, with every checksum that covers it."""
    raw = sealed(tree) if name.startswith(("commits/", "removing/")) else json.dumps(tree).encode()
    store.write(name, raw)
    folder, _, part = name.rpartition("/")
    if part.startswith("part-"):
        commit = f"commits/{folder.split('/')[1]}.json"
        if commit in store.objects:
            content = json.loads(store.read(commit))
            content["parts"][part] = {"bytes": len(raw), "crc32c": crc32c(raw)}
            store.write(commit, sealed(content))


def read_everything(store: Any, target: Any, remote: Any, cache: str) -> None:
    """As the commands and a gang do."""
    history = read_history(store)
    (index,) = (name for name in job().objects if "/by-stat/" in name)
    (data_id,) = (name.split("/")[1] for name in job().objects if name.endswith("/manifest.json"))
    found = read_manifest(store, data_id)
    readings: list[Callable[[], object]] = [
        lambda: list_commits(store),
        lambda: newest_configuration(store, history),
        lambda: (read_record(store), read_mark(store), read_run_facts(store, "Flow/1")),
        lambda: found and ensure_local_data(found, remote, data_config(cache)),
        lambda: _read_indexed_manifest(store, index),
        *(functools.partial(read_commit_and_parts, store, ref) for ref in REFS),
        *(functools.partial(verify_commit, store, ref) for ref in REFS),
        *(functools.partial(copy_commit, store, target, ref) for ref in REFS),
        *(lambda ref=ref: read_manifest(store, read_commit(store, ref).data_id) for ref in REFS),  # type: ignore[misc]
        lambda: prune(store, history.newest, RetentionConfig(keep_last=1)),
        lambda: rewind(store, 20),
    ]
    for reading in readings:
        with contextlib.suppress(*ERRORS):
            reading()


def check(name: str, place: int, bad: str) -> None:
    """Put `bad` in the place of one text of one object, and read everything."""
    store = MemoryStore()
    store.objects, store.clock = dict(job().objects), job().clock
    tree = content(name)
    if tree is None:
        store.write(name, bad.encode())
    else:
        list(texts(tree))[place](bad)
        rewritten(store, name, tree)
    with tempfile.TemporaryDirectory() as folder:
        asked = set[str]()
        watched = [Hooked(each, lambda _, name: asked.add(name)) for each in (store, MemoryStore(), store)]
        watched[2].uri = "s3://memory"
        with contextlib.suppress(*ERRORS):
            read_everything(*watched, f"{folder}/a/b/cache")
        assert {path.name for path in Path(folder).glob("*")} <= {"a"}
        assert {path.name for path in Path(folder).glob("a/*/*")} <= {"cache"}
    assert [name for name in asked if not is_below(name)] == []


def content(name: str) -> Json:
    """None: the object is plain text."""
    raw = job().read(name)
    return json.loads(raw) if raw.startswith(b"{") else None


def places() -> list[tuple[str, int]]:
    """Each object with the number of each text in it."""
    names = [name for name in job().objects if not name.endswith(".bin")]
    counts = {name: 1 if content(name) is None else len(list(texts(content(name)))) for name in names}
    return [(name, place) for name, count in counts.items() for place in range(count)]


@pytest.mark.processes
def test_no_object_is_sought_where_a_text_in_another_one_points() -> None:
    assert len(places()) > 80
    for name, place in places():
        check(name, place, "../../../../victim")


@examples(50)
@given(st.data(), st.sampled_from(BAD) | st.text())
def test_no_text_at_all_leads_out_of_a_store(data: st.DataObject, bad: str) -> None:
    check(*data.draw(st.sampled_from(places())), bad)


@pytest.mark.parametrize(("key", "value"), [("file", -1), ("start", -8), ("bytes", -8), ("chunk_bytes", 0)])
def test_a_part_that_counts_backwards_is_damage_so_that_an_older_commit_is_tried(key: str, value: int) -> None:
    """A negative index would silently be taken for one from the end."""
    store = MemoryStore()
    store.objects, store.clock = dict(job().objects), job().clock
    name = next(n for n in store.objects if n.endswith("part-00000.json") and REFS[0].stem in n)
    tree = content(name)
    (tree if key in tree else tree["shards"][0])[key] = value
    rewritten(store, name, tree)
    with pytest.raises(DamagedCommitError, match=key):
        read_commit_and_parts(store, REFS[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda commit: commit["files"][next(iter(commit["files"]))].update(crc32c=1),
        lambda commit: commit["files"].popitem(),
        lambda commit: commit["parts"].clear(),
        lambda commit: commit["parts"].pop("part-00001.json"),
    ],
    ids=["another checksum", "a file less", "no parts", "a part less"],
)
def test_a_commit_that_says_other_than_its_parts_is_damaged_whatever_its_checksum(
    change: Callable[[Json], Any],
) -> None:
    store: Any = MemoryStore()
    form(store)
    ref = STATE.save(store, 10).ref
    tree = json.loads(store.read(ref.name))
    change(tree)
    store.write(ref.name, sealed(tree))
    with pytest.raises(DamagedCommitError):
        read_commit_and_parts(store, ref)
    with pytest.raises(DamagedCommitError):
        verify_commit(store, ref)
    assert damaged_in(store) == {ref}


def test_a_damage_mark_that_is_not_readable_counts() -> None:
    store: Any = MemoryStore()
    form(store)
    ref = STATE.save(store, 10).ref
    store.write(damaged_name(ref), b"")
    (row,) = list_commits(store)
    assert row.damage is not None
    assert row.damage.endswith("marks it, and is not readable itself")
