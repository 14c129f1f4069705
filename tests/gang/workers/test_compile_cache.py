"""What torch compiled comes to the job's root whole or not at all, and from there to the next agent's folder. A job
that compiles leaves nothing behind on the machine, and its next attempt, by another agent, compiles nothing."""

import io
import os
import re
import tarfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from convoy.gang.agent import Gang
from convoy.gang.task import Task
from convoy.gang.workers import compile_cache
from convoy.gang.workers.compile_cache import CompileCache, cache_key, machine_facts
from convoy.job.events.registry import StepDone
from convoy.job.lineage import newest_commit, read_history
from convoy.job.record import job_store
from convoy.storage import Store, StoreUnavailable, open_store
from tests.gang.tasks import a_node, a_task, events_of, wait_for
from tests.training.job import GPT

LIBRARY = "inductor/ab/cab.main.so"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cache, "LOOK_SECONDS", 0.05)
    for name in (*compile_cache.FOLDERS, *compile_cache.SETTINGS):
        monkeypatch.delenv(name, raising=False)


until = partial(wait_for, "what compiles or copies")


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
    cache = CompileCache(store, tmp_path / "compiled", uploads=True)
    assert cache.environment == {
        "TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/compiled/inductor",
        "TRITON_CACHE_DIR": f"{tmp_path}/compiled/triton",
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    }
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"):
        monkeypatch.setenv(name, "of the user")
    assert list(CompileCache(store, tmp_path, uploads=True).environment) == ["TORCHINDUCTOR_CACHE_DIR"]


def test_what_is_complete_is_uploaded_once_and_comes_to_the_next_agent(store: Store, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with CompileCache(store, first, uploads=True) as cache:
        cache.delete_incomplete()
        build(first).chmod(0o755)
        build(first, "triton/kernel.cubin", b"more")
        build(first, "inductor/locks/cab.lock", b"")  # no part of it
        until(lambda: copies(store) and len(held(store)) >= 2)
        cache.delete_incomplete()
        assert set(held(store)) == {LIBRARY, "triton/kernel.cubin"}
    with CompileCache(store, second, uploads=True) as cache:
        cache.delete_incomplete()
        until(lambda: (second / "triton/kernel.cubin").exists())
        cache.delete_incomplete()
        assert (second / LIBRARY).read_bytes() == b"code"
        assert os.access(second / LIBRARY, os.X_OK)
        build(second, "inductor/new.py")
        until(lambda: len(held(store)) == 3)


@pytest.mark.parametrize(("uploads", "most_bytes"), [(False, 2000), (True, 3)])
def test_only_node_0_uploads_and_no_more_than_the_most(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uploads: bool, most_bytes: int
) -> None:
    monkeypatch.setattr(compile_cache, "MAX_BYTES", most_bytes)
    with CompileCache(store, tmp_path / "compiled", uploads=uploads) as cache:
        build(tmp_path / "compiled")
        until(lambda: cache._complete)
        time.sleep(0.2)
    assert copies(store) == []


def test_nothing_is_uploaded_while_a_library_is_built(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    with CompileCache(store, folder, uploads=True):
        building = folder / "inductor/ab/cab.main_CxxBuild"
        building.mkdir(parents=True)
        build(folder)
        time.sleep(0.5)
        assert copies(store) == []
        building.rmdir()
        until(lambda: copies(store))


def test_what_a_killed_worker_left_half_done_goes_before_the_next_start(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    with CompileCache(store, folder, uploads=True) as cache:
        build(folder)
        until(lambda: copies(store))
        half = build(folder, "inductor/ab/half.so", b"\x7fELF")
        (half.parent / "half_CxxBuild").mkdir()
        cache.delete_incomplete()
        assert not half.exists()
        assert (folder / LIBRARY).exists()
    assert list(held(store)) == [LIBRARY]


@pytest.mark.processes
def test_a_file_that_grows_is_not_complete(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cache, "LOOK_SECONDS", 0.2)
    folder = tmp_path / "compiled"
    with CompileCache(store, folder, uploads=True):
        for size in range(1, 20):
            build(folder, data=b"x" * size)
            time.sleep(0.05)
            assert copies(store) == []
        until(lambda: copies(store))
    assert held(store) == {LIBRARY: b"x" * 19}


def archive(*names: str, size: int = 1, mode: Any = "w", **links: str) -> bytes:
    """Of files that hold nothing but zeros, and of links, each with what it leads to."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, io.BytesIO(bytes(size)))
        for name, target in links.items():
            link = tarfile.TarInfo(f"inductor/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    return packed.getvalue()


def put_copy(store: Store, data: bytes) -> str:
    name = f"compiled/{cache_key(machine_facts())}.tar"
    store.write(name, data)
    return name


def test_files_of_a_copy_that_belong_elsewhere_are_not_taken(store: Store, tmp_path: Path) -> None:
    outside = ("../outside", "/tmp/outside-too", ".", "inductor/.", "inductor/../../outside", "inductor//double")
    put_copy(store, archive(*outside, "inductor/inside", link="/etc/passwd"))
    with CompileCache(store, tmp_path / "a" / "compiled", uploads=False):
        until(lambda: (tmp_path / "a" / "compiled" / "inductor" / "inside").exists())
    found = {path.relative_to(tmp_path).as_posix() for path in (tmp_path / "a").rglob("*") if not path.is_dir()}
    assert found == {"a/compiled/inductor/inside"}


UNUSABLE = {
    "no archive": (b"no tar at all", "truncated header"),
    "truncated": (archive("inductor/a", size=400)[:700], "unexpected end of data"),
    "truncated, and compressed": (archive("inductor/a", mode="w:gz")[:-9], "truncated header"),
    "more than is kept": (archive("inductor/a", "inductor/b", size=400), "its files have more than 500 bytes"),
    "a large archive": (archive("inductor/a", size=2**14), "has 20480 bytes, more than 20000"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_copy_that_is_not_usable_is_told_in_one_line_and_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    monkeypatch.setattr(compile_cache, "MAX_BYTES", 500)
    monkeypatch.setattr(compile_cache, "MAX_HEADER_BYTES", 19_500, raising=False)
    store, (data, why) = open_store(str(tmp_path / "root")), UNUSABLE[kind]
    name = put_copy(store, data)
    with CompileCache(store, tmp_path / "own", uploads=True) as cache:
        cache.delete_incomplete()
        build(tmp_path / "own")
        until(lambda: LIBRARY in (held_or_none(store) or {}))
    told = capfd.readouterr().out
    assert told == f"convoy: {store.uri}/{name}: {why}; the rest of it is not used, but compiled anew\n"
    assert {path.name for path in tmp_path.iterdir()} == {"root", "own"}


def held_or_none(store: Store) -> dict[str, bytes] | None:
    try:
        return held(store)
    except tarfile.TarError:
        return None


def test_a_root_that_is_away_is_no_hindrance(tmp_path: Path) -> None:
    def away(*_: object) -> Any:
        raise StoreUnavailable("away")

    store: Any = SimpleNamespace(sizes=away, read=away, write=away)
    with CompileCache(store, tmp_path / "compiled", uploads=True) as cache:
        cache.delete_incomplete()
        build(tmp_path / "compiled")
        until(lambda: cache._complete)


def test_machines_of_another_kind_have_another_copy() -> None:
    facts = machine_facts()
    assert cache_key(facts) == cache_key(dict(reversed(facts.items())))
    keys = {cache_key({**facts, name: "another"}) for name in facts}
    assert len(keys | {cache_key(facts)}) == len(facts) + 1
    assert cache_key(facts).startswith(f"torch{facts['torch']}-python3.")
    assert facts["cpu"]


PATIENCE_SECONDS = 240.0
"""The compiler takes seconds of a core for each of several graphs."""

COMPILER = """#!/bin/sh
echo "$@" >> {log}
exec g++ "$@"
"""


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What the C++ compiler was asked to build so far, by the source's name without its suffix."""
    log, compiler = tmp_path / "builds", tmp_path / "counting-g++"
    compiler.write_text(COMPILER.format(log=log))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(compile_cache, "LOOK_SECONDS", 0.5)
    return lambda: re.findall(r"/compiled/(inductor/\w+/\w+)\S*\.cpp", log.read_text()) if log.exists() else []


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.timeout(900)
def test_a_later_attempt_compiles_nothing(
    builds: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    train = {"threads_per_rank": 1, "compile": True, "steps": 100_000}
    # Evaluated in batches of the size that it trains in: otherwise the order of the two decides which sizes are fixed.
    sections = {"model": GPT | {"n_layers": 1}, "evaluation": {"sequences": 8}}
    first = a_task(str(tmp_path / "root"), train=train, **sections)
    with Gang(first, a_node(nproc=1)) as gang:
        while_runs(gang, lambda: any(isinstance(e, StepDone) and e.step >= 5 for e in events_of(first)))
        store = job_store(first.root, first.job)
        while_runs(gang, lambda: kept(store) >= set(builds()))
        assert gang.workers is not None
        gang.workers.give_order("save_and_end")
        while_runs(gang, lambda: reached(first))

    before = len(builds())
    assert before
    second = a_task(first.root, train=train | {"steps": reached(first) + 5}, **sections)
    with Gang(second, a_node(nproc=1, attempt=1)) as gang:
        ended = gang.wait(PATIENCE_SECONDS)
    assert ended is not None
    assert ended.outcome == "finished"
    assert builds()[before:] == []
    assert list(temporary.iterdir()) == []


def while_runs(gang: Gang, condition: Callable[[], object]) -> None:
    """Until this comes true, while the gang runs."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        ended = gang.wait(0.1)
        assert ended is None or ended.outcome == "stopped", ended
        assert time.monotonic() < deadline


def kept(store: Store) -> set[str]:
    """The libraries in the copy that the root has, by the source's name without its suffix."""
    files = held(store) if copies(store) else {}
    return {name.partition(".")[0] for name in files if name.endswith(".so")}


def reached(task: Task) -> int:
    """Steps of the newest commit; 0: there is none."""
    newest = newest_commit(read_history(job_store(task.root, task.job)))
    return newest.step if newest else 0
