"""Whatever is changed in the files of a commit, a restore finds it, and gives the commit before, bit for bit.

`make campaign` tries more than 2,000 changes. The same ones are made to a checkpoint of torch's own, for comparison.
"""

import collections
import contextlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from convoy.checkpoint.format import Commit, PlainValue
from convoy.checkpoint.messages import SetLayout, WritePart
from convoy.checkpoint.restore.load import Damage, restore
from convoy.checkpoint.state.flat_shard import FlatShard
from convoy.checkpoint.state.layout import make_layout, make_plan
from convoy.checkpoint.writer.parts import write_part
from convoy.job.lineage import read_history, restore_candidates
from convoy.storage import Store, open_store
from tests.campaign import examples
from tests.checkpoint.torchless import commit_when_complete, form
from tests.training.engines.test_engines import ENGINES, Name, job_of
from tests.training.job import differing

pytestmark = pytest.mark.campaign

CHUNK_BYTES = 2048
WRITERS = 2
EXAMPLES = 220
ENGINE_EXAMPLES = 60
"""Of changes to what an engine saved, of all kinds together; ten times as many in a campaign."""
WRONG = "loaded wrong without a word"


def state(step: int) -> dict[str, Any]:
    """What step 2 holds differs from step 1 in every chunk."""
    generator = torch.Generator().manual_seed(step)
    return {
        "w": torch.randn(90, 181, generator=generator),
        "b": torch.randn(1300, generator=generator).to(torch.bfloat16),
        "n": torch.tensor(step),
    }


def empty() -> dict[str, Any]:
    return {name: torch.zeros_like(tensor) for name, tensor in state(0).items()} | {"step": -1}


def save(store: Store, step: int) -> None:
    """Each of two writers writes about half, in chunks so small that a file has many."""
    plan = make_plan(state(step), 0, None)
    draft = Commit(generation=1, step=step, attempt="draft", parent=None, world_size=WRITERS, tensors=plan.tensors)
    requests = []
    for writer in range(WRITERS):
        own = make_layout(plan.held[writer::WRITERS], file_bytes=16384)
        requests.append(
            WritePart(
                tier=store.uri,
                buffer="",
                generation=1,
                step=step,
                attempt=f"a{step}",
                writer=writer,
                writers=WRITERS,
                values=[PlainValue(name="step", value=step)] if writer == 0 else [],
                draft=draft if writer == 0 else None,
                deadline_seconds=60.0,
            )
        )
        data, tensors = bytearray(own.bytes), state(step)
        for start, box in zip(own.starts(), own.boxes, strict=True):
            local = tensors[box.name]
            for dim, (begin, length) in enumerate(zip(box.inner, box.size, strict=True)):
                local = local.narrow(dim, begin, length)
            data[start : start + box.bytes] = bytes(local.contiguous().view(-1).view(torch.uint8).numpy())
        shards = SetLayout(shards=list(own.shards), file_bytes=list(own.file_bytes))
        write_part(store, requests[-1], shards, memoryview(data), 1, chunk_bytes=CHUNK_BYTES)
    commit_when_complete(store, store, requests[0])


@dataclass(frozen=True)
class Trained:
    """What an engine trained and saved."""

    engine: Name
    job: Path
    states: dict[int, dict[str, torch.Tensor]]
    """By step, every tensor whole."""


@dataclass(frozen=True)
class Change:
    """What is done to a file; the numbers are taken modulo what there is."""

    kind: str
    file: int
    first: int
    second: int

    def apply(self, files: list[Path]) -> None:
        path = files[self.file % len(files)]
        if self.kind == "delete":
            path.unlink()
        elif self.kind == "swap files":
            other = files[self.first % len(files)]
            one, two = path.read_bytes(), other.read_bytes()
            assume(one != two)
            path.write_bytes(two)
            other.write_bytes(one)
        else:
            before = path.read_bytes()
            after = CHANGES[self.kind](before, self.first, self.second)
            assume(after != before)
            path.write_bytes(after)


def flip(data: bytes, place: int, bit: int) -> bytes:
    place %= len(data)
    return data[:place] + bytes([data[place] ^ (1 << bit % 8)]) + data[place + 1 :]


def truncate(data: bytes, length: int, _: int) -> bytes:
    return data[: length % len(data)]


def lengthen(data: bytes, length: int, _: int) -> bytes:
    return data + data[: 1 + length % len(data)]


def swap(data: bytes, first: int, second: int) -> bytes:
    chunks = cut(data)
    first, second = first % len(chunks), second % len(chunks)
    chunks[first], chunks[second] = chunks[second], chunks[first]
    return b"".join(chunks)


def overwrite(data: bytes, first: int, second: int) -> bytes:
    chunks = cut(data)
    chunks[first % len(chunks)] = chunks[second % len(chunks)]
    return b"".join(chunks)


def insert(data: bytes, first: int, second: int) -> bytes:
    chunks = cut(data)
    chunks.insert(first % (len(chunks) + 1), chunks[second % len(chunks)])
    return b"".join(chunks)


def drop(data: bytes, first: int, _: int) -> bytes:
    chunks = cut(data)
    del chunks[first % len(chunks)]
    return b"".join(chunks)


def zero(data: bytes, first: int, _: int) -> bytes:
    """As a file system may leave blocks that were never written."""
    chunks = cut(data)
    chunks[first % len(chunks)] = bytes(len(chunks[first % len(chunks)]))
    return b"".join(chunks)


def cut(data: bytes) -> list[bytes]:
    return [data[i : i + CHUNK_BYTES] for i in range(0, len(data), CHUNK_BYTES)]


CHANGES: dict[str, Callable[[bytes, int, int], bytes]] = {
    "flip": flip,
    "truncate": truncate,
    "lengthen": lengthen,
    "swap": swap,
    "overwrite": overwrite,
    "insert": insert,
    "drop": drop,
    "zero": zero,
}
NUMBERS = st.integers(0, 2**16)
KINDS = [*CHANGES, "delete", "swap files"]


def changes(*kinds: str) -> st.SearchStrategy[Change]:
    return st.builds(Change, st.sampled_from(kinds), NUMBERS, NUMBERS, NUMBERS)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    store = open_store(str(folder))
    form(store)
    with pytest.MonkeyPatch.context() as patch:
        # Files as small as these would end in whole chunks of nothing but padding, which nobody reads.
        patch.setattr("convoy.checkpoint.state.layout.PAGE_BYTES", 64)
        for step in (1, 2):
            save(store, step)
    assert len(list(folder.glob("shards/000001-000000002/a2/*.bin"))) > WRITERS
    return folder


@pytest.fixture(scope="module", params=ENGINES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A job of two ranks that an engine trained, saved after both of its steps."""
    sections = {"train": {"steps": 2}, "checkpoint": {"every_steps": 1}}
    job = job_of(tmp_path_factory.mktemp("trained"), sections, request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("convoy.checkpoint.state.layout.PAGE_BYTES", 64)
        job.run(WRITERS)
    states = {step: job.state(job.commit_of(step)) for step in (1, 2)}
    assert differing(states[1], states[2]) == list(states[1])
    return Trained(request.param, Path(job.store.uri), states)


def files_of(job: Path, step: int) -> list[Path]:
    """The commit, its part records and its data files."""
    stem = f"000001-{step:09d}"
    return [job / f"commits/{stem}.json", *sorted((job / "shards" / stem).rglob("*.*"))]


@contextlib.contextmanager
def undone(files: list[Path]) -> Iterator[None]:
    before = {path: path.read_bytes() for path in files}
    try:
        yield
    finally:
        for path, data in before.items():
            path.write_bytes(data)


def loaded(job: Path) -> tuple[int, list[Damage]]:
    """The step that was restored, which the state must be exactly."""
    return loaded_from(open_store(str(job)))


def loaded_from(store: Store) -> tuple[int, list[Damage]]:
    found, damages = empty(), list[Damage]()
    restored = restore([store], restore_candidates(read_history(store)), found, on_damage=damages.append)
    assert restored is not None
    assert found["step"] == restored.step
    assert all(torch.equal(found[name], tensor) for name, tensor in state(restored.step).items())
    return restored.step, damages


def restored_by_engine(trained: Trained) -> tuple[int, list[Damage]]:
    """The step that was restored as a rank of the engine restores it, which must be exactly what was saved."""
    store, damages = open_store(str(trained.job)), list[Damage]()
    found = {name: _target(trained.engine, whole) for name, whole in trained.states[1].items()}
    restored = restore([store], restore_candidates(read_history(store)), found, on_damage=damages.append)
    assert restored is not None
    for name, whole in trained.states[restored.step].items():
        if isinstance(shard := found[name], FlatShard):
            assert torch.equal(shard.flat, whole.flatten()[shard.start :]), name
        else:
            assert torch.equal(shard, whole), name
    return restored.step, damages


def _target(engine: Name, whole: torch.Tensor) -> torch.Tensor:
    """To be filled; under ZeRO a stretch that begins within a row."""
    start = whole.numel() // 3
    if whole.ndim == 0 or not engine.startswith("zero"):
        return torch.zeros_like(whole)
    return FlatShard(torch.zeros_like(whole.flatten()[start:]), whole.shape, start)


def test_untouched_the_newest_is_restored(job: Path) -> None:
    assert loaded(job) == (2, [])


@pytest.mark.sampled(3)
@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_every_change_of_any_file_is_found_and_the_commit_before_restored(
    job: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = tries(job, [kind], EXAMPLES // len(KINDS), lambda: loaded(job))
    with capsys.disabled():
        print(f"\ncorruption, {kind}: {tried} of {tried} changes found")


@pytest.mark.sampled(5)
@pytest.mark.processes
@pytest.mark.timeout(1200)
def test_every_change_of_what_an_engine_saved_is_found_and_the_commit_before_restored(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = tries(trained.job, KINDS, ENGINE_EXAMPLES, lambda: restored_by_engine(trained))
    with capsys.disabled():
        print(f"\ncorruption, trained by {trained.engine}: {tried} of {tried} changes found")


class Mirror:
    """A job's folder as objects in a bucket: what is changed in the folder is changed there, through the bucket's own
    interface, so that Google's sum of the object agrees and only ours can find it."""

    def __init__(self, job: Path, uri: str) -> None:
        self._job = job
        self._store = open_store(uri)
        self._there: dict[str, bytes] = {}

    def loaded(self) -> tuple[int, list[Damage]]:
        self._update()
        return loaded_from(self._store)

    def _update(self) -> None:
        found = {path.relative_to(self._job).as_posix(): path for path in self._job.rglob("*") if path.is_file()}
        wanted = {name: path.read_bytes() for name, path in found.items()}
        for name in self._there.keys() - wanted.keys():
            self._store.delete(name)
        for name, data in wanted.items():
            if self._there.get(name) != data:
                self._store.write(name, data)
        self._there = wanted


@pytest.mark.sampled(5)
@pytest.mark.processes
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_every_change_of_any_object_in_a_bucket_of_google_s_is_found_and_the_commit_before_restored(
    job: Path, kind: str, gcs_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = tries(job, [kind], EXAMPLES // len(KINDS), Mirror(job, gcs_uri).loaded)
    with capsys.disabled():
        print(f"\ncorruption in gs://, {kind}: {tried} of {tried} changes found")


def tries(job: Path, kinds: list[str], count: int, load: Callable[[], tuple[int, list[Damage]]]) -> int:
    """How many changes of the newest commit were tried; each must be found. load: gives the step that was restored."""
    tried = 0
    files = files_of(job, 2)
    commit = files[0].read_bytes()

    @given(changes(*kinds))
    @settings(examples(count), suppress_health_check=[HealthCheck.filter_too_much])
    def is_found(change: Change) -> None:
        nonlocal tried
        with undone(files):
            change.apply(files)
            assume(
                not files[0].exists()
                or commit == files[0].read_bytes()
                or meaning(files[0].read_bytes()) != meaning(commit)
            )
            step, damages = load()
            # Without its object there is no commit, damaged or not.
            assert (step, [d.ref.step for d in damages]) == (1, [2] if files[0].exists() else [])
        tried += 1

    is_found()
    assert tried
    assert load() == (2, [])
    return tried


def meaning(commit: bytes) -> Any:
    """Of a commit's bytes: a number may be written in several ways."""
    try:
        return json.loads(commit)
    except ValueError:
        return commit


@pytest.fixture(scope="module")
def of_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same state as torch's own checkpoint."""
    folder = tmp_path_factory.mktemp("torch")
    with silent():
        dcp.save(state(2), checkpoint_id=folder, no_dist=True)
    return folder


def test_torchs_own_checkpoint_loads_flipped_bits_for_comparison(
    of_torch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not about Convoy, but why it does not use torch's files: most flipped bits of them are loaded without a word."""
    outcomes: collections.Counter[str] = collections.Counter()
    path = max(of_torch.iterdir(), key=lambda path: path.stat().st_size)
    data = path.read_bytes()

    with silent():
        for place in range(0, len(data), len(data) // 24):
            with undone([path]):
                path.write_bytes(flip(data, place, bit=6))
                outcomes[torchs_outcome(of_torch)] += 1
        assert torchs_outcome(of_torch) == "right all the same"
    with capsys.disabled():
        print(f"\nflipped bits of torch's own checkpoint: {dict(sorted(outcomes.items()))}")
    assert outcomes[WRONG] > 0


def torchs_outcome(folder: Path) -> str:
    found = {name: torch.zeros_like(tensor) for name, tensor in state(0).items()}
    try:
        dcp.load(found, checkpoint_id=folder, no_dist=True)
    except (Exception, dcp.api.CheckpointException):
        return "found"
    right = all(torch.equal(found[name], tensor) for name, tensor in state(2).items())
    return "right all the same" if right else WRONG


@contextlib.contextmanager
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
