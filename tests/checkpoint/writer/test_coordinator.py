"""The commit comes when every part has, fits the others, and nothing newer is there; else it does not come."""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.commits import read_commit
from convoy.checkpoint.format import (
    Commit,
    PartRecord,
    TensorInfo,
    TensorShard,
    file_name,
    part_record_name,
    shards_prefix,
)
from convoy.checkpoint.messages import WritePart
from convoy.checkpoint.writer import coordinator
from convoy.checkpoint.writer.coordinator import (
    AttemptFailedError,
    Box,
    SupersededError,
    any_overlap,
    checked_tensor_infos,
    refuse_superseded,
)
from convoy.checkpoint.writer.parts import AbandonedError, write_failure_note
from convoy.job.lineage import generation_name
from convoy.storage import Store, StoreUnavailable, open_store
from tests.campaign import examples
from tests.checkpoint.shims import Faulty
from tests.checkpoint.torchless import TinyState, commit_when_complete, form, newest, restored

STATE = TinyState()
PREFIX = shards_prefix(1, 5, "a")


@pytest.fixture
def local(tmp_path: Path) -> Store:
    store = open_store(str(tmp_path / "store"))
    form(store)
    return store


class Patience:
    """A deadline in looks instead of seconds; what happens between two looks is told."""

    def __init__(self, looks: int = 3, between: Callable[[int], object] = lambda look: None) -> None:
        self.slept: list[float] = []
        self._looks = looks
        self._between = between

    def check(self) -> None:
        if len(self.slept) >= self._looks:
            raise AbandonedError("too late")

    def sleep(self, seconds: float) -> None:
        self._between(len(self.slept))
        self.slept.append(seconds)


def request(store: Store, writer: int) -> WritePart:
    return STATE.request(store.uri, writer, 5)


def commit(store: Store, patience: Patience | None = None, root: Store | None = None) -> Commit:
    patience = patience or Patience()
    return commit_when_complete(
        store, root or store, request(store, 0), check=patience.check, sleep=patience.sleep, clock=lambda: 12.5
    )


def change_second_record(store: Store, **fields: object) -> None:
    """Rewrite the record of writer 1 with other fields."""
    name = PREFIX + part_record_name(1)
    record = PartRecord.model_validate_json(store.read(name))
    store.write(name, record.model_copy(update=fields).model_dump_json().encode())


def both_parts(store: Store) -> None:
    for writer in range(2):
        STATE.write(store, request(store, writer))


def test_the_commit_names_every_part_and_file_and_is_what_is_restored(store: Store) -> None:
    form(store)
    both_parts(store)

    made = commit(store)

    assert read_commit(store, made.ref) == made
    assert list(made.parts) == [part_record_name(0), part_record_name(1)]
    assert {name: file.bytes for name, file in made.files.items()} == {file_name(0, 0): 5000, file_name(1, 0): 3000}
    assert made.tensors == {"w": TensorInfo(dtype="uint8", shape=[8000])}
    assert (made.attempt, made.created, made.job) == ("a", 12.5, "tiny")
    assert restored(store, made.ref) == [STATE.data(0, 5), STATE.data(1, 5)]
    assert newest(store) == made.ref


def test_it_waits_for_the_last_part_with_growing_pauses(local: Store) -> None:
    STATE.write(local, request(local, 0))
    patience = Patience(100, lambda look: STATE.write(local, request(local, 1)) if look == 20 else None)

    commit(local, patience)

    assert len(patience.slept) == 21
    assert patience.slept == sorted(patience.slept)
    assert patience.slept[0] == coordinator.FIRST_PAUSE_SECONDS
    assert patience.slept[-1] == coordinator.MAX_PAUSE_SECONDS


def test_without_every_part_there_is_no_commit_at_the_deadline(local: Store) -> None:
    STATE.write(local, request(local, 0))
    with pytest.raises(AbandonedError):
        commit(local)
    assert newest(local) is None


def test_a_deadline_that_passes_right_before_the_commit_is_kept(local: Store) -> None:
    both_parts(local)
    asked = 0

    def check() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise AbandonedError("too late")

    with pytest.raises(AbandonedError):
        commit_when_complete(local, local, request(local, 0), check=check)
    assert asked == 2
    assert newest(local) is None


def test_one_writer_s_failure_ends_the_attempt_with_its_reason(store: Store) -> None:
    form(store)
    STATE.write(store, request(store, 0))
    write_failure_note(store, request(store, 1), "writer 1: no space left")
    with pytest.raises(AttemptFailedError, match=r"^writer 1: no space left$"):
        commit(store)
    assert newest(store) is None


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"generation": 2}, "is of another attempt"),
        ({"step": 6}, "is of another attempt"),
        ({"attempt": "b"}, "is of another attempt"),
        ({"writer": 0}, "is of writer 0 of 2"),
        ({"writers": 3}, "is of writer 1 of 3"),
        ({"files": []}, "w: a shard names no file of its part"),
        ({"shards": []}, "w: 5000 elements in all parts, it has 8000"),
    ],
)
def test_a_record_that_does_not_fit_fails_the_attempt(local: Store, fields: dict[str, object], complaint: str) -> None:
    both_parts(local)
    change_second_record(local, **fields)
    with pytest.raises(AttemptFailedError, match=complaint):
        commit(local)
    assert newest(local) is None


def test_what_is_no_record_fails_the_attempt(local: Store) -> None:
    both_parts(local)
    local.write(PREFIX + part_record_name(1), b'{"writer": 1}')
    with pytest.raises(AttemptFailedError, match="13 bytes that are not a part record"):
        commit(local)


@pytest.mark.parametrize("length", [None, 0, 2999, 3001])
def test_a_file_that_is_not_as_long_as_its_record_says_fails_the_attempt(local: Store, length: int | None) -> None:
    both_parts(local)
    name = PREFIX + file_name(1, 0)
    local.delete(name)
    if length is not None:
        local.create(name, bytes(length))
    with pytest.raises(AttemptFailedError, match=f"00001.000.bin: {length} bytes, its record says 3000"):
        commit(local)


def test_a_tensor_that_no_part_holds_fails_the_attempt(local: Store) -> None:
    both_parts(local)
    draft = STATE.draft(1, 5)
    more = draft.model_copy(update={"tensors": draft.tensors | {"b": TensorInfo(dtype="float32", shape=[2])}})
    asked = request(local, 0).model_copy(update={"draft": more})
    with pytest.raises(AttemptFailedError, match="the parts do not hold the state: b"):
        commit_when_complete(local, local, asked)


def test_a_tensor_of_another_shape_fails_the_attempt(local: Store) -> None:
    both_parts(local)
    draft = STATE.draft(1, 5).model_copy(update={"tensors": {"w": TensorInfo(dtype="uint8", shape=[80, 100])}})
    with pytest.raises(AttemptFailedError, match="the parts do not hold the state: w"):
        commit_when_complete(local, local, request(local, 0).model_copy(update={"draft": draft}))


def test_an_empty_tensor_needs_no_shard(local: Store) -> None:
    both_parts(local)
    empty = TensorInfo(dtype="float32", shape=[0, 3])
    draft = STATE.draft(1, 5)
    more = draft.model_copy(update={"tensors": draft.tensors | {"none": empty}})
    made = commit_when_complete(local, local, request(local, 0).model_copy(update={"draft": more}))
    assert made.tensors["none"] == empty


def shard(**fields: object) -> TensorShard:
    whole = TensorShard(name="w", dtype="float32", shape=[4, 2], offset=[0, 0], size=[4, 2], file=0, start=0, bytes=32)
    return whole.model_copy(update=fields)


def record(*shards: TensorShard) -> PartRecord:
    files = [{"name": "f", "bytes": 32, "crc32c": [0]}]
    return PartRecord.model_validate(
        {"generation": 1, "step": 1, "attempt": "a", "writer": 0, "writers": 1, "files": files, "shards": []}
    ).model_copy(update={"shards": list(shards)})


def test_shards_of_several_parts_make_one_tensor() -> None:
    halves = [record(shard(size=[2, 2], bytes=16)), record(shard(offset=[2, 0], size=[2, 2], bytes=16))]
    assert checked_tensor_infos(halves) == {"w": TensorInfo(dtype="float32", shape=[4, 2])}
    assert checked_tensor_infos([record(shard(shape=[], offset=[], size=[], bytes=4))])["w"].shape == []


@pytest.mark.parametrize(
    ("shards", "complaint"),
    [
        ([shard(size=[3, 2])], "w: 6 elements in all parts, it has 8"),
        ([shard(), shard()], "w: 16 elements in all parts, it has 8"),
        ([shard(size=[2, 2]), shard(size=[2, 2])], "w: two shards hold the same elements, and others are missing"),
        ([shard(size=[2, 2]), shard(size=[2, 2], dtype="int32")], "not of one tensor"),
        ([shard(size=[2, 2]), shard(size=[2, 2], shape=[2, 4])], "not of one tensor"),
        ([shard(offset=[2, 0])], "w: a shard reaches out of its tensor"),
        ([shard(start=4)], "past the end of its file"),
        ([shard(file=1)], "w: a shard names no file of its part"),
    ],
)
def test_shards_that_make_no_whole_tensor_are_refused(shards: list[TensorShard], complaint: str) -> None:
    with pytest.raises(AttemptFailedError, match=complaint):
        checked_tensor_infos([record(*shards)])


def test_a_newer_generation_forbids_the_commit(store: Store) -> None:
    form(store)
    both_parts(store)
    form(store)
    with pytest.raises(SupersededError, match="generation 1 is superseded: another run of the job formed generation 2"):
        commit(store)
    assert newest(store) is None


def test_a_root_without_the_own_generation_is_an_outage(tmp_path: Path) -> None:
    unmounted = open_store(str(tmp_path / "unmounted"))
    both_parts(unmounted)
    with pytest.raises(StoreUnavailable, match="is it mounted"):
        commit(unmounted)
    assert unmounted.sizes("commits/") == {}


def test_on_another_tier_the_root_s_generations_count(local: Store, tmp_path: Path) -> None:
    tier = open_store(str(tmp_path / "tier"))
    both_parts(tier)
    form(local)
    with pytest.raises(SupersededError):
        commit(tier, root=local)


def test_a_tier_that_was_away_when_the_generation_formed_gets_it_with_its_first_commit(
    local: Store, tmp_path: Path
) -> None:
    """By itself the tier would else have a commit of a generation that nobody knows."""
    tier = open_store(str(tmp_path / "tier"))
    both_parts(tier)
    commit(tier, root=local)
    name = generation_name(1)
    assert tier.read(name) == local.read(name)


def test_a_root_that_is_out_of_reach_does_not_hold_up_another_tier(local: Store, tmp_path: Path) -> None:
    tier = open_store(str(tmp_path / "tier"))
    both_parts(tier)
    form(local)
    faulty = Faulty(local)
    faulty.fail("generations/")
    assert commit(tier, root=faulty).attempt == "a"  # nobody can know
    refuse_superseded(tier, None, 1)


def test_a_root_that_hangs_holds_up_another_tier_for_a_while_only(
    local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "ROOT_SECONDS", 0.05)
    tier, released = open_store(str(tmp_path / "tier")), threading.Event()
    both_parts(tier)
    faulty = Faulty(local)
    faulty.hang("generations/", released)
    try:
        assert commit(tier, root=faulty).attempt == "a"
    finally:
        released.set()


def test_a_root_that_raises_what_nobody_foresaw_is_logged_and_does_not_fail_the_save(
    local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinator, "_mirror_and_list_generations", lambda *_: [][0])
    tier = open_store(str(tmp_path / "tier"))
    both_parts(tier)
    assert commit(tier, root=local).attempt == "a"
    assert [r.getMessage() for r in caplog.records] == ["the generations of the root could not be listed"]


def test_a_listing_that_fails_fails_the_attempt(local: Store) -> None:
    both_parts(local)
    faulty = Faulty(local)
    faulty.fail(PREFIX)
    with pytest.raises(StoreUnavailable):
        commit(faulty)


def test_a_second_attempt_of_the_same_step_gets_the_commit_that_is_there(local: Store) -> None:
    first = STATE.save(local, 5, attempt="a")
    assert STATE.save(local, 5, attempt="b") == first


def test_only_what_the_draft_describes_is_committed(local: Store) -> None:
    with pytest.raises(ValueError, match="only the coordinator"):
        commit_when_complete(local, local, request(local, 1))
    with pytest.raises(ValueError, match="only the coordinator"):
        commit_when_complete(local, local, request(local, 0).model_copy(update={"step": 6}))


@st.composite
def some_boxes(draw: st.DrawFn) -> list[Box]:
    dims = draw(st.integers(0, 3))
    span = st.tuples(*[st.tuples(st.integers(0, 5), st.integers(0, 4))] * dims)
    return [Box(tuple(o for o, _ in b), tuple(n for _, n in b)) for b in draw(st.lists(span, max_size=6))]


def elements(box: Box) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(o, o + n) for o, n in zip(box.offset, box.size, strict=True))))


@pytest.mark.campaign
@examples(300)
@given(some_boxes())
def test_boxes_meet_exactly_if_they_share_an_element(boxes: list[Box]) -> None:
    shared = Counter(element for box in boxes for element in elements(box))
    assert any_overlap(boxes) == any(count > 1 for count in shared.values())


def test_boxes_that_no_cut_separates_are_told_apart() -> None:
    pinwheel = [Box((0, 0), (1, 2)), Box((0, 2), (2, 1)), Box((2, 1), (1, 2)), Box((1, 0), (2, 1)), Box((1, 1), (1, 1))]
    assert not any_overlap(pinwheel)
    assert any_overlap([*pinwheel, Box((1, 1), (1, 1))])


def test_thousands_of_shards_are_cheap_however_a_tensor_was_cut() -> None:
    for grid in [(4096, 1, 1), (1, 4096, 1), (16, 16, 16)]:
        boxes = [Box(tuple(7 * i for i in at), (7, 7, 7)) for at in itertools.product(*map(range, grid))]
        random.Random(0).shuffle(boxes)
        began = time.thread_time()
        assert not any_overlap(boxes)
        assert time.thread_time() - began < 2.0  # every pair of them would take some ten seconds
        assert any_overlap([*boxes, boxes[0]])
