"""A store neither reads nor changes anything outside of its root, whatever it is asked for."""

from collections.abc import Callable
from pathlib import Path

import pytest
from mypy_boto3_s3 import S3Client

from convoy.storage import ObjectMissing, Store, StoreUnavailable, open_store

OUTSIDE = [
    "../victim/object.jsonl",
    "a/../../victim/object.jsonl",
    "..",
    ".",
    "",
    "a//object",
    "/object",
    "a/object/",
    "a\0b",
    "a/./b",
]

OPERATIONS: dict[str, Callable[[Store, str], object]] = {
    "create": lambda store, name: store.create(name, b"x"),
    "write": lambda store, name: store.write(name, b"x"),
    "put": lambda store, name: store.put(name, memoryview(b"x"), 1024),
    "read": lambda store, name: store.read(name),
    "read into": lambda store, name: store.read_into(name, 0, memoryview(bytearray(6))),
    "delete": lambda store, name: store.delete(name),
}
ON_FOLDERS = {
    **OPERATIONS,
    "drop cache": lambda store, name: store.drop_cache(name),
    "appender": lambda store, name: store.open_log(name.removesuffix(".jsonl")),
    "sizes": lambda store, name: store.sizes(f"{name.rpartition('/')[0]}/"),
}


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder beside the store, with one file."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "object.jsonl").write_bytes(b"theirs\n")
    return tmp_path / "victim"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_name_that_leads_elsewhere_is_refused_and_touches_nothing(
    store_uri: str, operation: str, victim: Path
) -> None:
    store = open_store(store_uri)
    store.write("a/object", b"ours")
    for name in OUTSIDE:
        with pytest.raises(StoreUnavailable, match="is not the name of an object there"):
            OPERATIONS[operation](store, name)
    assert store.sizes("") == {"a/object": 4}
    assert files(victim) == {"object.jsonl": b"theirs\n"}


@pytest.mark.parametrize("prefix", ["../victim/", "a/../../victim/", "../victim/obj", "//"])
def test_a_listing_of_what_is_elsewhere_is_refused(store_uri: str, prefix: str, victim: Path) -> None:
    store = open_store(store_uri)
    store.write("a/object", b"ours")
    with pytest.raises(StoreUnavailable, match="is not the name of an object there"):
        store.sizes(prefix)


def test_a_key_that_is_not_a_name_is_not_listed(s3_uri: str, s3_client: S3Client) -> None:
    store = open_store(s3_uri)
    store.write("commits/1.json", b"x")
    bucket, _, prefix = s3_uri.removeprefix("s3://").partition("/")
    for key in ("commits/", "commits/../../victim", "commits//2.json"):
        s3_client.put_object(Bucket=bucket, Key=f"{prefix}/{key}", Body=b"x")
    assert store.sizes("") == {"commits/1.json": 1}


@pytest.mark.parametrize("operation", ON_FOLDERS)
@pytest.mark.parametrize("name", ["linked/object.jsonl", "a/deeper/object.jsonl"])
def test_a_link_below_the_root_that_leads_out_of_it_is_refused(
    tmp_path: Path, victim: Path, operation: str, name: str
) -> None:
    (tmp_path / "store" / "a").mkdir(parents=True)
    (tmp_path / "store" / "linked").symlink_to(victim)
    (tmp_path / "store" / "a" / "deeper").symlink_to("../../victim")
    with pytest.raises(StoreUnavailable, match=f"The link leads out of {tmp_path}/store: '.*/{name.split('/')[-2]}'"):
        ON_FOLDERS[operation](open_store(str(tmp_path / "store")), name)
    assert files(victim) == {"object.jsonl": b"theirs\n"}


@pytest.mark.parametrize("operation", ["read", "read into", "drop cache", "appender"])
def test_a_file_that_is_a_link_out_of_the_root_is_neither_read_nor_appended_to(
    tmp_path: Path, victim: Path, operation: str
) -> None:
    store = open_store(str(tmp_path / "store"))
    store.write("log/other", b"x")
    (tmp_path / "store" / "log" / "1.jsonl").symlink_to(victim / "object.jsonl")
    with pytest.raises(StoreUnavailable, match="The link leads out of"):
        ON_FOLDERS[operation](store, "log/1.jsonl")


def test_a_file_that_is_a_link_out_of_the_root_is_replaced_or_removed_itself(tmp_path: Path, victim: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    store.write("a", b"x")
    for name in ("written", "deleted", "created"):
        (tmp_path / "store" / name).symlink_to(victim / "object.jsonl")
    store.write("written", b"ours")
    store.delete("deleted")
    assert not store.create("created", b"ours")
    assert store.read("written") == b"ours"
    assert not (tmp_path / "store" / "deleted").is_symlink()
    assert files(victim) == {"object.jsonl": b"theirs\n"}


def test_a_root_that_is_a_link_and_links_within_it_are_followed(tmp_path: Path) -> None:
    (tmp_path / "fsx" / "jobs" / "blue").mkdir(parents=True)
    (tmp_path / "runs").symlink_to(tmp_path / "fsx" / "jobs")
    (tmp_path / "blue").symlink_to(tmp_path / "runs" / "blue")
    store = open_store(str(tmp_path / "blue"))
    store.write("shards/1", b"one")
    (tmp_path / "blue" / "again").symlink_to("shards")
    assert store.read("again/1") == store.read("shards/1") == b"one"
    store.delete("again/1")
    with pytest.raises(ObjectMissing):
        store.read("shards/1")
    assert open_store(str(tmp_path / "runs" / "blue")).create("again/2", b"two")
    assert files(tmp_path / "fsx" / "jobs" / "blue") == {"shards/2": b"two"}
