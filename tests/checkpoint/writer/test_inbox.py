"""Requests are served in order, a write before what is done between saves, and a newer write is noticed at once.
What is done between saves is told to each tier by itself."""

import threading
import time
from typing import Any

from convoy.checkpoint.messages import Close, PostCommitRequest, SetLayout
from convoy.checkpoint.writer.inbox import DueWork, Inbox
from convoy.job.lineage import CommitRef
from tests.checkpoint.torchless import TinyState

WRITES = [TinyState().request("/store", 0, step) for step in (1, 2)]
LAYOUT = SetLayout(shards=[], file_bytes=[])


def after_commit(step: int, **fields: Any) -> PostCommitRequest:
    return PostCommitRequest(ref=CommitRef(generation=1, step=step), tier="/store", writer=0, generation=1, **fields)


def test_requests_come_in_order_with_the_time_of_their_arrival() -> None:
    inbox, began = Inbox(), time.monotonic()
    for request in (LAYOUT, WRITES[0], Close()):
        inbox.put(request)
    ended = time.monotonic()
    received = [inbox.next_request() for _ in range(3)]
    assert [one.request for one in received] == [LAYOUT, WRITES[0], Close()]
    assert began <= received[0].at <= received[1].at <= received[2].at <= ended


def test_a_write_knows_of_the_next_one_and_not_of_itself() -> None:
    inbox = Inbox()
    inbox.put(WRITES[0])
    inbox.next_request()
    assert not inbox.wait_for_write(0.01)
    threading.Timer(0.05, inbox.put, [WRITES[1]]).start()
    assert inbox.wait_for_write(30.0)
    inbox.end_write()
    inbox.next_request()
    assert not inbox.wait_for_write(0)


def test_what_is_done_between_saves_waits_for_the_last_write_and_keeps_its_order() -> None:
    inbox, got = Inbox(), list[DueWork | None]()
    for write in WRITES:
        inbox.put(write)
    for step in (1, 2):
        inbox.put(after_commit(step, verify_part=0))
    thread = threading.Thread(target=lambda: got.extend([inbox.take_due("/store"), inbox.take_due("/store")]))
    thread.start()
    for _ in WRITES:
        inbox.next_request()
        assert got == []
        inbox.end_write()
    inbox.close()
    thread.join(30.0)
    assert got == [DueWork(read_back=[after_commit(step, verify_part=0) for step in (1, 2)]), None]


def test_each_tier_is_told_what_concerns_it() -> None:
    inbox = Inbox()
    first = after_commit(1, verify_part=0, copy_to=["/a", "/b"])
    second = after_commit(2, copy_to=["/b"], prune=True)
    for request in (first, second):
        inbox.put(request)
    assert inbox.take_due("/store") == DueWork(read_back=[first], prune=1)
    assert inbox.take_due("/a") == DueWork(copy=[first])
    assert inbox.take_due("/b") == DueWork(copy=[first, second], prune=1)


def test_an_attempt_that_was_given_up_has_its_tier_pruned_and_the_newest_names_are_kept() -> None:
    inbox = Inbox()
    for number in range(70):
        inbox.note_abandoned(str(number), "/store", 3)
    assert inbox.take_due("/store") == DueWork(prune=3)
    assert inbox.abandoned_attempts() == {str(number) for number in range(6, 70)}


def test_closing_leaves_nothing_undone() -> None:
    inbox = Inbox()
    inbox.put(after_commit(1, prune=True))
    inbox.close()
    assert inbox.take_due("/store") == DueWork(prune=1)
    assert inbox.take_due("/store") is None


def test_who_waits_for_the_end_hears_of_it_at_once() -> None:
    inbox = Inbox()
    assert not inbox.wait_until_closing(0.01)
    threading.Timer(0.05, inbox.close).start()
    assert inbox.wait_until_closing(30.0)
    assert inbox.wait_until_closing(0)


def test_who_waits_for_idleness_goes_on_when_the_write_has_ended() -> None:
    inbox, idle = Inbox(), threading.Event()
    inbox.put(WRITES[0])
    inbox.next_request()
    thread = threading.Thread(target=lambda: (inbox.wait_until_idle(), idle.set()))
    thread.start()
    assert not idle.wait(0.05)
    inbox.end_write()
    assert idle.wait(30.0)
    thread.join()
