"""The commit object: created once, by one save, and never believed when it was changed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from convoy.checkpoint.commit import (
    FORMAT_VERSION,
    Commit,
    DamagedCommitError,
    Progress,
    SamplerPosition,
    check_files,
    create_commit,
    read_commit,
    shards_prefix,
)
from convoy.config.errors import ConfigError
from convoy.job.lineage import CommitRef
from convoy.storage import Store, open_store


def commit(**changed: Any) -> Commit:
    return Commit(
        generation=2,
        step=40,
        attempt="first",
        parent=CommitRef(generation=1, step=30),
        files={"a": 3, "b": 5},
        parameters={"w": [11, 1000]},
        world_size=4,
        mesh={"replicate": 2, "shard": 2},
        progress=Progress(step=40, tokens=1000, skipped=1, seconds=12.345678901234567),
        sampler=SamplerPosition(seed=3, next_sample=320),
        rng={"scheme": "keyed", "seed": 3},
        fingerprint="f",
        data_id="d",
        config_hash="c",
        versions={"torch": "2"},
        created=1.5,
    ).model_copy(update=changed)


@dataclass
class LostReply:
    """A store whose first `create` does its work, and then says that something was there."""

    store: Store
    lost: bool = False

    @property
    def uri(self) -> str:
        return self.store.uri

    def create(self, name: str, data: bytes) -> bool:
        made = self.store.create(name, data)
        return made and self.lost

    def read(self, name: str, start: int = 0) -> bytes:
        return self.store.read(name, start)


def test_what_is_read_is_what_was_created(store_uri: str) -> None:
    store = open_store(store_uri)

    created = create_commit(store, commit())

    assert read_commit(store, CommitRef(generation=2, step=40)) == created
    assert created == commit(checksum=created.checksum)
    assert created.shards == "shards/000002-000000040/first/"


def test_another_save_of_the_same_step_is_refused_and_changes_nothing(store_uri: str) -> None:
    store = open_store(store_uri)
    create_commit(store, commit())

    with pytest.raises(FileExistsError, match=r"commits/000002-000000040\.json was made by another save"):
        create_commit(store, commit(attempt="second"))

    assert read_commit(store, commit().ref).attempt == "first"


def test_a_lost_reply_to_our_own_creation_is_success(tmp_path: Path) -> None:
    store: Any = LostReply(open_store(str(tmp_path)))

    create_commit(store, commit())

    assert read_commit(store, commit().ref).attempt == "first"


@pytest.mark.parametrize("field", sorted(Commit.model_fields))
def test_a_change_of_any_field_is_noticed(field: str, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    create_commit(store, commit())
    plain = json.loads(store.read(commit().ref.name))
    changed = {"a": 1} if isinstance(plain[field], dict) else ("x" if isinstance(plain[field], str) else 0)

    store.write(commit().ref.name, json.dumps(plain | {field: changed}).encode())

    with pytest.raises(DamagedCommitError):
        read_commit(store, commit().ref)


@pytest.mark.parametrize("raw", [b"", b"{}", b"[1]", b"\xff\xfe", b"null"])
def test_what_is_no_commit_is_called_damaged(raw: bytes, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.write(commit().ref.name, raw)

    with pytest.raises(DamagedCommitError, match=f"{len(raw)} bytes that are not a commit"):
        read_commit(store, commit().ref)


def test_a_commit_that_is_gone_is_damaged(store_uri: str) -> None:
    with pytest.raises(DamagedCommitError, match="there is no such commit"):
        read_commit(open_store(store_uri), commit().ref)


def test_a_newer_format_is_not_damage(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    newer = commit(format=FORMAT_VERSION + 1).model_dump(mode="json") | {"chunks": []}
    store.write(commit().ref.name, json.dumps(newer).encode())

    with pytest.raises(ConfigError, match=f"has format {FORMAT_VERSION + 1}; this version of Convoy reads up to"):
        read_commit(store, commit().ref)


def test_whole_files_pass_the_check(store_uri: str) -> None:
    store = open_store(store_uri)
    _write_files(store, a=b"123", b=b"12345")

    check_files(store, commit())


@pytest.mark.parametrize("files", [{"a": b"123"}, {"a": b"123", "b": b"1234"}, {"a": b"123", "b": b"123456"}])
def test_a_missing_or_cut_file_is_named(files: dict[str, bytes], store_uri: str) -> None:
    store = open_store(store_uri)
    _write_files(store, **files)

    with pytest.raises(DamagedCommitError, match=r"first/b: .* bytes, the commit says 5"):
        check_files(store, commit())


def test_shards_of_two_attempts_never_share_a_prefix() -> None:
    one, other = shards_prefix(1, 2, "a"), shards_prefix(1, 2, "ab")
    assert not one.startswith(other)
    assert not other.startswith(one)


def _write_files(store: Store, **files: bytes) -> None:
    for name, data in files.items():
        store.write(commit().shards + name, data)
