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
from convoy.checkpoint.save.writer_client import WriterClient
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
def client(monkeypatch: pytest.MonkeyPatch) -> WriterClient:
    monkeypatch.setattr(writer_client, "WriterProcess", Process)
    made = WriterClient(WriterSetup(tiers=TIERS, store=StoreConfig(), keep_last=1, keep_every_steps=None))
    made.start()
    return made


def process(client: WriterClient) -> Any:
    return client._writer


def ask(client: WriterClient, step: int, **fields: Any) -> None:
    ref = CommitRef(generation=1, step=step)
    client.after_commit(AfterCommit(ref=ref, tier="root", writer=0, generation=1, **fields))


def done(client: WriterClient, chore: Chore, step: int, tier: str) -> None:
    process(client).reports.append(ChoreDone(chore=chore, ref=CommitRef(generation=1, step=step), tier=tier))


def test_a_chore_is_under_way_from_when_it_is_asked_until_its_end_is_told(client: WriterClient) -> None:
    assert client.busy() == Busy()
    ask(client, 1, verify_part=0, copy_to=["near", "far"])
    assert client.busy() == Busy(reading_back=frozenset({0}), copying=frozenset({1, 2}))
    done(client, "reading_back", 1, "root")
    assert client.busy() == Busy(copying=frozenset({1, 2}))
    done(client, "copying", 1, "near")
    assert client.busy() == Busy(copying=frozenset({2}))
    done(client, "copying", 1, "far")
    assert client.busy() == Busy()


def test_pruning_alone_makes_nobody_busy(client: WriterClient) -> None:
    ask(client, 1, prune=True)
    assert client.busy() == Busy()
    assert len(process(client).sent) == 1


def test_the_end_of_an_earlier_chore_is_not_that_of_the_newest(client: WriterClient) -> None:
    ask(client, 1, verify_part=0)
    ask(client, 2, verify_part=0)
    done(client, "reading_back", 1, "root")
    assert client.busy() == Busy(reading_back=frozenset({0}))
    done(client, "reading_back", 2, "root")
    assert client.busy() == Busy()


def test_a_process_that_replaces_one_that_died_has_nothing_to_end(client: WriterClient) -> None:
    ask(client, 1, verify_part=0, copy_to=["near"])
    process(client).lives = False
    client.expect("a", 10.0, coordinator=True)
    assert process(client).lives
    assert client.busy() == Busy()


def test_nothing_is_asked_of_a_process_that_is_not_there(client: WriterClient) -> None:
    client._writer = None
    ask(client, 1, verify_part=0, copy_to=["near"])
    assert client.busy() == Busy()


# A process that hangs.


def submit(client: WriterClient, name: str, deadline_seconds: float = 900.0) -> None:
    state = client.expect(name, deadline_seconds, coordinator=False)
    client.send(state, SetLayout(shards=[], file_bytes=[]), part(name))


def part(name: str) -> WritePart:
    fields: Any = {"tier": "root", "buffer": "", "generation": 1, "step": 1, "attempt": name, "values": []}
    return WritePart(**fields, writer=0, writers=1, draft=None, deadline_seconds=9.0)


def failed(client: WriterClient, name: str) -> bool:
    state = client.state_of(name)
    assert state is not None
    return state.status.failed == 1


def attempts(client: WriterClient) -> list[str]:
    return [request.attempt for request in process(client).sent if isinstance(request, WritePart)]


def test_what_waits_behind_an_attempt_that_hangs_is_written_by_a_new_process(
    client: WriterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = process(client)
    submit(client, "hangs")
    client.forget("hangs")  # the gang has moved the save to another tier
    monkeypatch.setattr(writer_client, "GRACE_SECONDS", -1.0)
    submit(client, "behind")
    assert not failed(client, "behind")
    assert not hung.lives
    assert attempts(client) == ["behind"]
    assert isinstance(process(client).sent[0], SetLayout)
    process(client).reports.append(PartWritten(attempt="behind", bytes=1, seconds=1.0))
    state = client.state_of("behind")
    assert state is not None
    assert state.written


def test_an_attempt_that_hangs_is_not_tried_again(client: WriterClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_client, "GRACE_SECONDS", -1.0)
    submit(client, "hangs", deadline_seconds=0.0)
    assert failed(client, "hangs")
    assert attempts(client) == []


def test_where_two_processes_in_a_row_hang_there_is_none_that_waits_for_a_third(
    client: WriterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(client, "hangs")
    client.forget("hangs")
    monkeypatch.setattr(writer_client, "GRACE_SECONDS", -1.0)
    submit(client, "hangs too")
    assert not failed(client, "hangs too")
    client.forget("hangs too")
    submit(client, "behind")
    assert failed(client, "behind")
    assert client._writer is None


def test_what_the_process_asked_of_buckets_is_counted_with_the_ranks_own(client: WriterClient) -> None:
    tally().take()
    tally().add(Requests(bucket="b", gets=1))
    process(client).reports.append(Requested(requests=[Requests(bucket="b", region="us-west-2", puts=3)]))
    client.collect()
    assert client.reports() == []
    assert tally().take() == [Requests(bucket="b", region="us-west-2", puts=3, gets=1)]
