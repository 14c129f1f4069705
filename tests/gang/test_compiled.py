"""What torch compiled comes to the job's root whole or not at all, and from there to the next agent's folder."""

import io
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from convoy.gang import compiled
from convoy.gang.compiled import CompileCache, cache_key, this_machine
from convoy.storage import Store, StoreUnavailable, open_store

LIBRARY = "inductor/ab/cab.main.so"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "LOOK_SECONDS", 0.05)
    for name in (*compiled.FOLDERS, *compiled.SETTINGS):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store(store_uri: str) -> Store:
    return open_store(store_uri)


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def build(folder: Path, name: str = LIBRARY, data: bytes = b"code") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def copies(store: Store) -> list[str]:
    return list(store.sizes("compiled/"))


def held(store: Store) -> dict[str, bytes]:
    """What the one copy holds."""
    (name,) = copies(store)
    with tarfile.open(fileobj=io.BytesIO(store.read(name))) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def test_workers_compile_into_a_folder_of_the_agent_s_own(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CompileCache(store, tmp_path / "compiled", keeps=True)
    assert cache.environment == {
        "TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/compiled/inductor",
        "TRITON_CACHE_DIR": f"{tmp_path}/compiled/triton",
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    }
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"):
        monkeypatch.setenv(name, "of the user")
    assert list(CompileCache(store, tmp_path, keeps=True).environment) == ["TORCHINDUCTOR_CACHE_DIR"]


def test_what_is_whole_is_kept_once_and_comes_to_the_next_agent(store: Store, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with CompileCache(store, first, keeps=True) as cache:
        cache.begin()
        build(first).chmod(0o755)
        build(first, "triton/kernel.cubin", b"more")
        until(lambda: copies(store) and len(held(store)) == 2)
    with CompileCache(store, second, keeps=True) as cache:
        cache.begin()
        until(lambda: (second / "triton/kernel.cubin").exists())
        cache.begin()
        assert (second / LIBRARY).read_bytes() == b"code"
        assert os.access(second / LIBRARY, os.X_OK)
        build(second, "inductor/new.py")
        until(lambda: len(held(store)) == 3)


def test_only_node_0_keeps(store: Store, tmp_path: Path) -> None:
    with CompileCache(store, tmp_path / "compiled", keeps=False) as cache:
        build(tmp_path / "compiled")
        until(lambda: cache._whole)
        time.sleep(0.2)
    assert copies(store) == []


def test_nothing_is_kept_while_a_library_is_built(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    with CompileCache(store, folder, keeps=True):
        building = folder / "inductor/ab/cab.main_CxxBuild"
        building.mkdir(parents=True)
        build(folder)
        time.sleep(0.5)
        assert copies(store) == []
        building.rmdir()
        until(lambda: copies(store))


def test_what_a_killed_worker_left_half_done_goes_before_the_next_start(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    with CompileCache(store, folder, keeps=True) as cache:
        build(folder)
        until(lambda: copies(store))
        half = build(folder, "inductor/ab/half.so", b"\x7fELF")
        (half.parent / "half_CxxBuild").mkdir()
        cache.begin()
        assert not half.exists()
        assert (folder / LIBRARY).exists()
    assert list(held(store)) == [LIBRARY]


def test_a_file_that_grows_is_not_whole(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "LOOK_SECONDS", 0.2)
    folder = tmp_path / "compiled"
    with CompileCache(store, folder, keeps=True):
        for size in range(1, 20):
            build(folder, data=b"x" * size)
            time.sleep(0.05)
            assert copies(store) == []
        until(lambda: copies(store))
    assert held(store) == {LIBRARY: b"x" * 19}


def test_locks_are_no_part_of_it(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    with CompileCache(store, folder, keeps=True) as cache:
        build(folder, "inductor/locks/cab.lock", b"")
        build(folder)
        until(lambda: copies(store))
        cache.begin()
    assert list(held(store)) == [LIBRARY]


def test_more_than_the_most_is_not_kept(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MOST_BYTES", 3)
    with CompileCache(store, tmp_path / "compiled", keeps=True) as cache:
        build(tmp_path / "compiled")
        until(lambda: cache._whole)
        time.sleep(0.2)
    assert copies(store) == []


def test_a_copy_that_is_damaged_or_reaches_outside_brings_nothing(store: Store, tmp_path: Path) -> None:
    name = f"compiled/{cache_key(this_machine())}.tar"
    bad = io.BytesIO()
    with tarfile.open(fileobj=bad, mode="w") as tar:
        for path in ("../outside", "/tmp/outside-too", "inductor/inside"):
            member = tarfile.TarInfo(path)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
        link = tarfile.TarInfo("inductor/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    store.write(name, bad.getvalue())
    with CompileCache(store, tmp_path / "a" / "compiled", keeps=False):
        until(lambda: (tmp_path / "a" / "compiled" / "inductor" / "inside").exists())
    found = {path.relative_to(tmp_path).as_posix() for path in (tmp_path / "a").rglob("*") if not path.is_dir()}
    assert found == {"a/compiled/inductor/inside"}
    store.write(name, b"no tar at all")
    with CompileCache(store, tmp_path / "b", keeps=True):
        build(tmp_path / "b")
        until(lambda: held_or_none(store))
    assert list(held(store)) == [LIBRARY]


def held_or_none(store: Store) -> dict[str, bytes] | None:
    try:
        return held(store)
    except tarfile.TarError:
        return None


def test_a_root_that_is_away_is_no_hindrance(tmp_path: Path) -> None:
    class Away:
        def read(self, name: str) -> bytes:
            raise StoreUnavailable("away")

        def write(self, name: str, data: bytes) -> None:
            raise StoreUnavailable("away")

    with CompileCache(Away(), tmp_path / "compiled", keeps=True) as cache:  # type: ignore[arg-type]
        cache.begin()
        build(tmp_path / "compiled")
        until(lambda: cache._whole)


def test_machines_of_another_kind_have_another_copy() -> None:
    facts = this_machine()
    assert cache_key(facts) == cache_key(dict(reversed(facts.items())))
    keys = {cache_key({**facts, name: "another"}) for name in facts}
    assert len(keys | {cache_key(facts)}) == len(facts) + 1
    assert cache_key(facts).startswith(f"torch{facts['torch']}-python3.")
    assert facts["cpu"]
