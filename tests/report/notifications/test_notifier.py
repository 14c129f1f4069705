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
from convoy.report.notifications import notifier, send
from convoy.report.notifications.message import Commands, Message
from convoy.report.notifications.notifier import Notifier, Outbox, Subject
from convoy.report.notifications.send import check_target, is_sent
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
    monkeypatch.setattr(notifier, "POLL_SECONDS", 0.05)
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
