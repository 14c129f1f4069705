"""What a rank's writer process has still to do between saves is known at each moment, without a wait."""

from typing import Any

import pytest

from convoy.checkpoint.messages import (
    AfterCommit,
    Chore,
    ChoreDone,
    PartWritten,
    Report,
    Request,
    Requested,
    SetLayout,
    WritePart,
    WriterSetup,
)
from convoy.checkpoint.save import writer_client
from convoy.checkpoint.save.post_commit import Busy
from convoy.checkpoint.save.writer_client import Link
from convoy.config.checkpoint import StoreConfig
from convoy.job.lineage import CommitRef
from convoy.storage.usage import Requests, tally

TIERS = ["root", "near", "far"]


class Process:
    """A writer process that says what it is told to say."""

    def __init__(self, setup: WriterSetup) -> None:
        self.reports: list[Report] = []
        self.sent: list[Request] = []
        self.lives = True

    def start(self) -> None: ...

    def send(self, request: Request) -> None:
        self.sent.append(request)

    def poll(self) -> list[Report]:
        reports, self.reports = self.reports, []
        return reports

    def alive(self) -> bool:
        return self.lives

    def ended(self) -> bool:
        return not self.lives

    def abandon(self) -> None:
        self.lives = False


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch) -> Link:
    monkeypatch.setattr(writer_client, "WriterProcess", Process)
    made = Link(WriterSetup(tiers=TIERS, store=StoreConfig(), keep_last=1, keep_every_steps=None))
    made.start()
    return made


def process(linked: Link) -> Any:
    return linked._writer


def ask(linked: Link, step: int, **fields: Any) -> None:
    ref = CommitRef(generation=1, step=step)
    linked.after_commit(AfterCommit(ref=ref, tier="root", writer=0, generation=1, **fields))


def done(linked: Link, chore: Chore, step: int, tier: str) -> None:
    process(linked).reports.append(ChoreDone(chore=chore, ref=CommitRef(generation=1, step=step), tier=tier))


def test_a_chore_is_under_way_from_when_it_is_asked_until_its_end_is_told(linked: Link) -> None:
    assert linked.busy() == Busy()
    ask(linked, 1, verify_part=0, copy_to=["near", "far"])
    assert linked.busy() == Busy(reading_back=frozenset({0}), copying=frozenset({1, 2}))
    done(linked, "reading_back", 1, "root")
    assert linked.busy() == Busy(copying=frozenset({1, 2}))
    done(linked, "copying", 1, "near")
    assert linked.busy() == Busy(copying=frozenset({2}))
    done(linked, "copying", 1, "far")
    assert linked.busy() == Busy()


def test_pruning_alone_makes_nobody_busy(linked: Link) -> None:
    ask(linked, 1, prune=True)
    assert linked.busy() == Busy()
    assert len(process(linked).sent) == 1


def test_the_end_of_an_earlier_chore_is_not_that_of_the_newest(linked: Link) -> None:
    ask(linked, 1, verify_part=0)
    ask(linked, 2, verify_part=0)
    done(linked, "reading_back", 1, "root")
    assert linked.busy() == Busy(reading_back=frozenset({0}))
    done(linked, "reading_back", 2, "root")
    assert linked.busy() == Busy()


def test_a_process_that_replaces_one_that_died_has_nothing_to_end(linked: Link) -> None:
    ask(linked, 1, verify_part=0, copy_to=["near"])
    process(linked).lives = False
    linked.expect("a", 10.0, coordinator=True)
    assert process(linked).lives
    assert linked.busy() == Busy()


def test_nothing_is_asked_of_a_process_that_is_not_there(linked: Link) -> None:
    linked._writer = None
    ask(linked, 1, verify_part=0, copy_to=["near"])
    assert linked.busy() == Busy()


# A process that hangs.


def submit(linked: Link, name: str, deadline_seconds: float = 900.0) -> None:
    given = linked.expect(name, deadline_seconds, coordinator=False)
    linked.send(given, SetLayout(shards=[], file_bytes=[]), part(name))


def part(name: str) -> WritePart:
    fields: Any = {"tier": "root", "buffer": "", "generation": 1, "step": 1, "attempt": name, "values": []}
    return WritePart(**fields, writer=0, writers=1, draft=None, deadline_seconds=9.0)


def failed(linked: Link, name: str) -> bool:
    given = linked.given(name)
    assert given is not None
    return given.standing.failed == 1


def attempts(linked: Link) -> list[str]:
    return [request.attempt for request in process(linked).sent if isinstance(request, WritePart)]


def test_what_waits_behind_an_attempt_that_hangs_is_written_by_a_new_process(
    linked: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = process(linked)
    submit(linked, "hangs")
    linked.forget("hangs")  # the gang has moved the save to another tier
    monkeypatch.setattr(writer_client, "GRACE_SECONDS", -1.0)
    submit(linked, "behind")
    assert not failed(linked, "behind")
    assert not hung.lives
    assert attempts(linked) == ["behind"]
    assert isinstance(process(linked).sent[0], SetLayout)
    process(linked).reports.append(PartWritten(attempt="behind", bytes=1, seconds=1.0))
    given = linked.given("behind")
    assert given is not None
    assert given.written


def test_an_attempt_that_hangs_is_not_tried_again(linked: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_client, "GRACE_SECONDS", -1.0)
    submit(linked, "hangs", deadline_seconds=0.0)
    assert failed(linked, "hangs")
    assert attempts(linked) == []


def test_where_two_processes_in_a_row_hang_there_is_none_that_waits_for_a_third(
    linked: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(linked, "hangs")
    linked.forget("hangs")
    monkeypatch.setattr(writer_client, "GRACE_SECONDS", -1.0)
    submit(linked, "hangs too")
    assert not failed(linked, "hangs too")
    linked.forget("hangs too")
    submit(linked, "behind")
    assert failed(linked, "behind")
    assert linked._writer is None


def test_what_the_process_asked_of_buckets_is_counted_with_the_ranks_own(linked: Link) -> None:
    tally().take()
    tally().add(Requests(bucket="b", gets=1))
    process(linked).reports.append(Requested(requests=[Requests(bucket="b", region="us-west-2", puts=3)]))
    linked.collect()
    assert linked.reports() == []
    assert tally().take() == [Requests(bucket="b", region="us-west-2", puts=3, gets=1)]
