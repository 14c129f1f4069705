"""Messages that a webhook and a mail server get: each once, over attempts, kills and refusals."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from convoy.config.errors import PrerequisiteMissing
from convoy.config.notify import TARGET, NotifyConfig
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import Event, FailureDetected, GenerationEnded, GenerationStarted, StepDone
from convoy.job.notified import Claim, claim
from convoy.report.notifications import notifier, send
from convoy.report.notifications.message import Commands, Message
from convoy.report.notifications.notifier import Notifier, Outbox, Subject
from convoy.report.notifications.send import check_target, is_sent
from convoy.storage import StoreUnavailable
from convoy.storage.posix import PosixStore
from tests.sinks import PASSWORD, smtp, webhook

pytestmark = pytest.mark.processes

ALL = NotifyConfig(on=("started", "preempted", "failed", "resumed", "finished", "regressed", "budget", "stalled"))
SUBJECT = Subject("blue", Commands("convoy run f.py --job blue"), 9)
STEP = StepDone(step=5, loss=1.0, grad_norm=1.0, lr=0.1, tokens=100, seconds=0.5)
FAILED = FailureDetected(cause="exited", failed_node=1, worker=1, signal="SIGKILL", action="restart", step=5)


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(tmp_path / "blue")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_SECONDS", "AGAIN_SECONDS"):
        monkeypatch.setattr(notifier, name, 0.05)
    monkeypatch.setattr(notifier, "PAUSE_SECONDS", 0.05)


def write(store: PosixStore, generation: int, agent: list[Event], rank: list[Event]) -> None:
    for events, log in ((agent, EventWriter(store, generation, 0)), (rank, EventWriter(store, generation, 0, 0))):
        for event in events:
            log.append(event)
        log.close()


def follow(store: PosixStore, generation: int, send: Callable[[Message], bool | None] = is_sent) -> None:
    """What node 0 of an attempt does, once its log is complete."""
    with Notifier(Outbox(ALL, store, send), store, SUBJECT, generation) as following:
        following.end()
        following.join(60)


def fail_and_resume(store: PosixStore) -> None:
    write(store, 1, [GenerationStarted(), FAILED, GenerationEnded(outcome="failed", step=5)], [STEP])
    write(store, 2, [GenerationStarted(parent_generation=1, parent_step=4)], [STEP])


@pytest.mark.parametrize("sink_of", [webhook, smtp])
def test_each_message_comes_once_over_attempts(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch, sink_of: Callable[[], object]
) -> None:
    with sink_of() as sink:  # type: ignore[attr-defined]
        monkeypatch.setenv(TARGET, sink.url)
        fail_and_resume(store)
        follow(store, 1)
        write(store, 3, [GenerationStarted(parent_generation=2, parent_step=4)], [STEP])
        write(store, 3, [GenerationEnded(outcome="finished", step=9)], [])
        follow(store, 3)
        follow(store, 3)
    assert sink.titles == [f"Convoy: blue {what}" for what in ("has started", "has resumed", "is finished")]
    for line in ("First cause: rank 1 on node 1 was killed by SIGKILL", "Step: 5 of 9", "Cost so far: ",
                 "Continue: convoy run f.py --job blue"):  # fmt: skip
        assert line in sink.bodies[1]


def test_a_target_that_refuses_gets_the_message_later_and_once(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(store, 1, [GenerationStarted()], [])
    with webhook() as sink:
        monkeypatch.setenv(TARGET, sink.url)
        sink.answers = [500, 503]
        follow(store, 1)
    assert sink.titles == ["Convoy: blue has started"]
    assert capsys.readouterr().err == (
        "convoy: notify: the message `started` was not sent: the target did not take it; it is tried again\n"
    )


def test_of_two_targets_the_one_that_takes_the_message_gets_it_once(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(store, 1, [GenerationStarted()], [])
    with webhook() as takes, webhook() as refuses:
        refuses.answers = [500] * 20
        monkeypatch.setenv(TARGET, f"{takes.url} {refuses.url}")
        follow(store, 1)
        follow(store, 1)
    assert (len(takes.titles), len(refuses.answers)) == (1, 19)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "convoy: notify: one of several targets did not take a message, and does not get it again"


def test_a_message_that_cannot_be_written_yet_is_no_sent_one(store: PosixStore) -> None:
    sent: list[Message] = []
    outbox = Outbox(ALL, store, lambda message: sent.append(message) or True)  # type: ignore[func-returns-value]

    def out_of_reach() -> Message:
        raise StoreUnavailable("gone")

    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            outbox.post("started", out_of_reach)
    outbox.post("started", lambda: Message("t", "b"))
    assert sent == [Message("t", "b")]


def test_a_process_that_follows_no_log_waits_for_the_claim_of_a_sender_that_died(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "LEASE_SECONDS", 0.3)
    monkeypatch.setattr(notifier, "AGAIN_SECONDS", 0.02)
    assert claim(store, "failed", 60) == Claim("failed", 1)
    answers = [False, True]
    Outbox(ALL, store, lambda message: answers.pop(0)).deliver("failed", lambda: Message("t", "b"))
    assert answers == []
    assert claim(store, "failed", 60) == "sent"


def test_a_sender_killed_between_sending_and_its_mark_repeats_a_message_at_most_once(
    tmp_path: Path, store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "LEASE_SECONDS", 0.0)
    write(store, 1, [GenerationStarted()], [])
    code = (
        "import os, sys; from convoy.storage.posix import PosixStore\n"
        "from convoy.report.notifications import notifier\n"
        "from convoy.config.notify import NotifyConfig; from convoy.report.notifications.message import Message\n"
        "notifier.LEASE_SECONDS = 0.0\n"
        "notifier.mark_sent = lambda *_: os.kill(os.getpid(), 9)\n"
        "outbox = notifier.Outbox(NotifyConfig(on=('started',)), PosixStore(sys.argv[1]))\n"
        "outbox.post('started', lambda: Message('t', 'b'))\n"
    )
    with webhook() as sink:
        monkeypatch.setenv(TARGET, sink.url)
        for _ in range(3):
            subprocess.run([sys.executable, "-c", code, store.uri], check=False)
        follow(store, 1)
    assert sink.titles == ["t", "t"]


def test_a_target_that_hangs_holds_up_nobody(store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store, 1, [GenerationStarted()], [])
    with Notifier(Outbox(ALL, store, lambda message: time.sleep(60) or None), store, SUBJECT, 1) as following:
        began = time.monotonic()
        following.end()
        following.join(0.2)
    assert time.monotonic() - began < 5
    began = time.monotonic()
    monkeypatch.setattr(sys, "executable", "/bin/sleep")
    monkeypatch.setattr(send.json, "dumps", lambda body: "")
    assert is_sent(Message("t", "b"), 0.3) in (None, False)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("", "CONVOY_NOTIFY: not set, and notify.on needs a target: a URL of apprise, e.g. mailtos://"),
        (f"nowhere://me:{PASSWORD}@host", "CONVOY_NOTIFY: apprise knows no target of the form of URL 1 of 1"),
        (f"json://host jsn://me:{PASSWORD}@host", "CONVOY_NOTIFY: apprise knows no target of the form of URL 2 of 2"),
    ],
)
def test_a_missing_or_unknown_target_is_one_line_without_its_text(
    target: str, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PrerequisiteMissing) as error:
        check_target({TARGET: target})
    assert str(error.value).startswith(line)
    assert PASSWORD not in "".join([str(error.value), *capfd.readouterr()])


def test_apprise_that_is_missing_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(PrerequisiteMissing, match=r"pip install 'metaflow-convoy\[notify\]'"):
        check_target({TARGET: "json://host"})


def test_neither_the_store_nor_a_list_of_processes_holds_the_password(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fail_and_resume(store)
    seen: list[bytes] = []
    with webhook() as sink:
        monkeypatch.setenv(TARGET, sink.url)
        started = subprocess.Popen

        class Watched(started):  # type: ignore[type-arg, misc, valid-type]
            def __init__(self, *args: object, **kwargs: object) -> None:
                super().__init__(*args, **kwargs)
                seen.append(Path(f"/proc/{self.pid}/cmdline").read_bytes())

        monkeypatch.setattr(subprocess, "Popen", Watched)
        sink.answers = [500]
        follow(store, 1)
    assert len(sink.titles) == 2
    assert len(seen) == 3
    kept = [file.read_bytes() for file in Path(store.uri).rglob("*") if file.is_file()]
    assert kept
    assert not any(PASSWORD.encode() in text for text in [*kept, *seen, *(t.encode() for t in capfd.readouterr())])
