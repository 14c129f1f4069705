"""The log: nothing lost, nothing repeated, whatever else lies between the lines."""

import gc
import itertools
import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.job.events.log import EventReader, EventWriter, read_events
from convoy.job.events.registry import (
    CheckpointSaved,
    Event,
    EventsDropped,
    RankThroughput,
    SampleText,
    StepDone,
    encode,
)
from convoy.storage import Store, StoreUnavailable, open_store
from tests.campaign import examples
from tests.checkpoint.shims import Faulty
from tests.conftest import S3Server

pytestmark = pytest.mark.campaign

LOG = "events/000000/00000/rank00000.jsonl"


def did(step: int, t: float = 0.0) -> RankThroughput:
    return RankThroughput(t=t, step=step, tokens=4096, seconds=0.25)


def steps(events: list[Event]) -> list[int]:
    return [event.step for event in events if isinstance(event, RankThroughput)]


def test_events_are_stamped_with_their_writer_and_the_time_and_each_writer_has_a_log(store: Store) -> None:
    before = time.time()
    for rank in (None, 6):
        writer = EventWriter(store, generation=12, node=345, rank=rank)
        writer.append(did(1))
        writer.close()
    events = read_events(store)
    assert [(e.generation, e.node, e.rank) for e in events] == [(12, 345, None), (12, 345, 6)]
    assert all(before <= e.t <= time.time() for e in events)
    agent, worker = sorted(store.sizes("events/"))
    assert agent.startswith("events/000012/00345/agent")
    assert worker.startswith("events/000012/00345/rank00006")
    assert [e.rank for e in read_events(store, 12, "rank00006")] == [6]
    assert [e.rank for e in read_events(store, 12, "agent")] == [None]


def test_a_reader_gets_each_event_of_a_growing_log_exactly_once(store: Store) -> None:
    writer, reader = EventWriter(store, 0, 0, rank=0), EventReader(store)
    assert reader.poll() == []
    seen: list[int] = []
    for burst in range(6):
        for i in range(burst):
            writer.append(did(10 * burst + i))
        writer.flush()
        new = steps(reader.poll())
        assert new == [10 * burst + i for i in range(burst)]
        seen += new
    writer.close()
    assert reader.poll() == []
    assert seen == steps(read_events(store))


def test_writers_are_merged_by_time(store: Store) -> None:
    for rank in range(3):
        log = store.open_log(f"events/000000/00000/rank{rank:05d}")
        for i in range(20):
            log.append(encode(did(step=3 * i + rank, t=1000.0 + 3 * i + rank)))
        log.close()
    assert steps(read_events(store)) == list(range(60))


@examples(25)
@given(cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_a_log_read_in_any_pieces_is_the_log(cuts: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    store = open_store(str(tmp_path_factory.mktemp("job")))
    log = b"".join(encode(did(step, t=float(step))) + b"\n" for step in range(15))
    reader, seen = EventReader(store), []
    for cut in [*sorted(cuts), len(log)]:
        store.write(LOG, log[:cut])
        seen += steps(reader.poll())
    assert seen == list(range(15))


@pytest.mark.parametrize(
    "damage",
    [b'{"kind":"from_the_future","t":5}', b'{"t":5}', b'{"kind":"step","st', b"", b"\x00" * 64, b"\xff\xfe", b"[1]"],
)
def test_a_damaged_line_or_one_of_another_version_costs_no_other(store: Store, damage: bytes) -> None:
    log = store.open_log("events/000000/00000/rank00000")
    for line in (encode(did(1)), damage, encode(did(2))):
        log.append(line)
    log.close()
    assert steps(EventReader(store).poll()) == [1, 2]


def test_a_carriage_return_in_a_text_does_not_end_its_line(store: Store) -> None:
    written: list[Event] = [
        SampleText(step=1, prompt="a\r\nb", text="c\x85\u2028d\x0b"),
        CheckpointSaved(step=2, attempt="x", bytes=1, seconds=0.1),
    ]
    writer = EventWriter(store, 0, 0, rank=0)
    for event in written:
        writer.append(event)
    writer.close()
    read = read_events(store)
    assert isinstance(read[0], SampleText)
    assert (read[0].prompt, read[0].text) == ("a\r\nb", "c\x85\u2028d\x0b")
    assert len(read) == 2


def test_what_was_lost_in_an_outage_too_long_is_told_once_the_storage_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convoy.storage.log.MAX_LINES", 3)
    released, store = threading.Event(), open_store(str(tmp_path))
    monkeypatch.setattr("convoy.storage.log.FileSink.sync", lambda self: released.wait(30))
    writer = EventWriter(store, 0, 0, rank=4)
    with pytest.raises(StoreUnavailable):
        writer.flush(0.01)  # and the thread that writes hangs from here on
    for step in range(10):
        writer.append(did(step))
    released.set()
    writer.close()
    events = read_events(store)
    assert steps(events) == [7, 8, 9]
    assert [(e.events, e.rank) for e in events if isinstance(e, EventsDropped)] == [(7, 4)]


def test_a_log_whose_storage_hangs_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr("convoy.storage.log.FileSink.write", lambda self, lines: released.wait(30))
    writer = EventWriter(open_store(str(tmp_path)), 0, 0, rank=4)
    writer.append(did(1))
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"rank00004.*no answer in 0\.1 s"):
        writer.close(0.1)
    assert time.monotonic() - began < 5
    released.set()


def test_an_outage_between_two_polls_loses_and_repeats_nothing(s3_uri: str, s3_server: S3Server) -> None:
    store = open_store(s3_uri)
    writer, reader = EventWriter(store, 0, 0, rank=0), EventReader(store)
    writer.append(did(1))
    writer.flush()
    assert steps(reader.poll()) == [1]
    s3_server.stop()
    writer.append(did(2))
    with pytest.raises(StoreUnavailable):
        reader.poll()
    s3_server.start_again()
    writer.append(did(3))
    writer.close()
    assert steps(reader.poll()) == [2, 3]


def test_an_outage_in_the_middle_of_a_poll_loses_and_repeats_nothing(tmp_path: Path) -> None:
    store, lost = Faulty(open_store(str(tmp_path))), "events/000000/00000/rank00001.jsonl"
    writers = [EventWriter(store, 0, 0, rank=rank) for rank in range(3)]
    for step, writer in enumerate(writers):
        writer.append(did(step))
        writer.flush()
    reader = EventReader(store)
    store.fail(lost)
    with pytest.raises(StoreUnavailable):
        reader.poll()
    store.mend(lost)
    assert steps(reader.poll()) == [0, 1, 2]
    assert reader.poll() == []


@pytest.mark.processes
def test_a_hundred_thousand_events_are_read_about_as_fast_as_json_parses_their_lines(tmp_path: Path) -> None:
    store, texts = open_store(str(tmp_path)), list[bytes]()
    for rank in range(4):
        lines = (
            encode(StepDone(t=i + rank / 4, step=i, loss=3.2, grad_norm=1.1, lr=1e-3, tokens=4096, seconds=0.1))
            for i in range(25_000)
        )
        texts.append(b"\n".join(lines) + b"\n")
        store.write(f"events/000000/00000/rank{rank:05d}.jsonl", texts[-1])
    gc.freeze()  # or each collection would go through all that other tests left in this process
    try:
        began = time.process_time()
        events = read_events(store)
        read = time.process_time()
        parsed = [json.loads(line) for text in texts for line in text.splitlines()]
        reading, parsing = read - began, time.process_time() - read
    finally:
        gc.unfreeze()
    assert len(events) == len(parsed) == 100_000
    assert all(one.t <= other.t for one, other in itertools.pairwise(events))
    assert reading < 4 * parsing  # 0.8 to 0.9 times when this was written
