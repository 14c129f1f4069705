"""What may give notice to a node: EC2, Metaflow's monitor, a signal, a person.

Source: AWS EC2 user guide, "Spot Instance interruption notices" and "EC2 instance rebalance recommendations".
"""

import os
import signal
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from convoy.config.json_text import parse_json
from convoy.config.train import NoticesConfig
from convoy.gang.notices.drain import DrainUnreadableError, read_drain
from convoy.gang.notices.imds import Answer, Imds
from convoy.gang.notices.notice import NoAnswer, Notice, Source
from convoy.gang.stop_signals import EndingSignals
from convoy.job.events.types import INTERRUPT
from convoy.storage import Store, StoreUnavailable

NOTICE_FILE = Path("/tmp/spot_termination_notice")
"""Where Metaflow's monitor of spot instances writes when the instance is taken away."""

STALE_SECONDS = 600.0
"""A machine that is still there so long after it was to be taken away will stay."""

INTERRUPT_SECONDS = 4.0
"""After Ctrl-C Metaflow's local runtime gives its tasks 4 to 5 s, and then kills them.

Source: metaflow 2.19.39, `NativeRuntime._killall`.
"""

_SKEW_SECONDS = 2.0
"""Clocks that differ by less are taken as equal: the service tells its own in whole seconds."""


class SpotAction:
    """The notice of a spot interruption, two minutes ahead where EC2 can give it."""

    name = "spot"
    foretells = True

    def __init__(self, imds: Imds, deadline_seconds: float, clock: Callable[[], float] = time.time) -> None:
        """deadline_seconds: for an answer that names no time that can be read."""
        self._imds = imds
        self._deadline_seconds = deadline_seconds
        self._clock = clock

    def ask(self) -> Notice | None:
        answer = self._imds.get("meta-data/spot/instance-action")
        now = self._clock()
        if answer is None:
            return None
        told = _json_object(answer, "meta-data/spot/instance-action")
        action, at = told.get("action"), told.get("time")
        if not isinstance(action, str):
            raise NoAnswer(f"meta-data/spot/instance-action: names no action: {answer.text[:80]}")
        deadline = _own_time(unix_time(at), answer, now)
        if deadline is not None and _stale(deadline, now):
            return None
        if action == "hibernate":  # begins at once, and the machine may return
            return Notice(self.name, "end", 0, f"EC2 hibernates this spot instance (told of {at})")
        if deadline is None:
            return Notice(self.name, "end", now + self._deadline_seconds, f"EC2 will {action} this spot instance soon")
        return Notice(self.name, "end", deadline, f"EC2 will {action} this spot instance at {at}")


class Rebalance:
    """The recommendation to leave a spot instance, for its risk of an interruption is raised.

    It stays for the instance's life. One that was there when it was first asked for is no news: the attempt was put on
    this machine in spite of it, and to leave at once would go on for ever.
    """

    name = "rebalance"
    foretells = True

    def __init__(self, imds: Imds) -> None:
        self._imds = imds
        self._at_first: str | None = None
        """What the first answer said."""

    def ask(self) -> Notice | None:
        answer = self._imds.get("meta-data/events/recommendations/rebalance")
        text = answer.text if answer is not None else ""
        if self._at_first is None:
            self._at_first = text
        if answer is None or text == self._at_first:
            return None
        at = _json_object(answer, "meta-data/events/recommendations/rebalance").get("noticeTime")
        return Notice(self.name, "rebalance", None, f"EC2 recommends to leave this spot instance (told at {at})")


class NoticeFile:
    """The file that Metaflow's monitor writes; as long as there is none, nobody knows whether anyone would."""

    name = "metaflow"
    foretells = True

    def __init__(self, path: Path, deadline_seconds: float, clock: Callable[[], float] = time.time) -> None:
        """deadline_seconds: for a file that names no time that can be read."""
        self._path = path
        self._deadline_seconds = deadline_seconds
        self._clock = clock

    def ask(self) -> Notice | None:
        try:
            text = self._path.read_text(errors="replace").strip()
            written = self._path.stat().st_mtime
        except FileNotFoundError:
            raise NoAnswer(f"{self._path}: not there, and would be only with a notice") from None
        except OSError as error:
            raise NoAnswer(f"{self._path}: {error.strerror}") from None
        if not text:  # opened, and not written yet
            return None
        named = unix_time(text)
        deadline = written + self._deadline_seconds if named is None else named
        if _stale(deadline, self._clock()):
            return None
        return Notice(self.name, "end", deadline, f"Metaflow: this spot instance is taken away ({text[:80]})")


class Signalled:
    """A signal that asks this process to end: how most platforms end one, with some time before SIGKILL, and Ctrl-C and
    the end of its terminal, which a run on this machine gets with all its processes."""

    name = "signal"
    foretells = False

    def __init__(self, signals: EndingSignals, deadline_seconds: float) -> None:
        self._signals = signals
        self._deadline_seconds = deadline_seconds

    def ask(self) -> Notice | None:
        came = list(self._signals.came)
        interrupts = [at for number, at in came if number == signal.SIGINT]
        if len(interrupts) > 1:
            return Notice(INTERRUPT, "end", 0, "Ctrl-C, twice")
        if interrupts:
            return Notice(INTERRUPT, "end", interrupts[0] + INTERRUPT_SECONDS, "Ctrl-C")
        if not came:
            return None
        number, at = came[0]
        if number == signal.SIGHUP:
            return Notice(INTERRUPT, "end", at + self._deadline_seconds, "its terminal was closed")
        return Notice("sigterm", "end", at + self._deadline_seconds, "SIGTERM to the agent")


class LauncherGone:
    """The end of the process that started this one: on this machine that is the run itself, and nobody would go on
    with the flow after this step."""

    name = "launcher"
    foretells = False

    def __init__(self, deadline_seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._launcher = os.getppid()
        self._deadline_seconds = deadline_seconds
        self._clock = clock

    def ask(self) -> Notice | None:
        if os.getppid() == self._launcher:
            return None
        text = f"the run's own process (pid {self._launcher}) is gone"
        return Notice(INTERRUPT, "end", self._clock() + self._deadline_seconds, text)


class DrainRequest:
    """A person's wish that this run ends: `convoy drain JOB`."""

    name = "drain"
    foretells = False

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run

    def ask(self) -> Notice | None:
        try:
            drain = read_drain(self._store)
        except (StoreUnavailable, DrainUnreadableError) as error:
            raise NoAnswer(str(error)) from None
        if drain is None or drain.run != self._run:
            return None
        how = "convoy drain --now" if drain.now else "convoy drain"
        asked = datetime.fromtimestamp(drain.requested, UTC)
        return Notice(self.name, "end", 0 if drain.now else None, f"{how} on {drain.host} at {asked:%H:%M:%S} UTC")


def machine_sources(environ: Mapping[str, str], config: NoticesConfig, file: Path = NOTICE_FILE) -> list[Source]:
    """What may give notice of this machine's end, apart from SIGTERM.

    file: of Metaflow's monitor, `current.spot_termination_notice` where there is one.
    """
    return [  # a client each, for a client serves one thread
        SpotAction(Imds(environ), config.deadline_seconds),
        Rebalance(Imds(environ)),
        NoticeFile(file, config.deadline_seconds),
    ]


def unix_time(text: object) -> float | None:
    """Unix time of an ISO 8601 time, UTC unless it says otherwise; None if it is none."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _json_object(answer: Answer, path: str) -> dict[str, Any]:
    """Raises NoAnswer: what is not understood is no notice, for a notice ends the attempt."""
    try:
        told = parse_json(answer.text)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise NoAnswer(f"{path}: not understood: {answer.text[:80]}")
    return told


def _own_time(at: float | None, answer: Answer, now: float) -> float | None:
    """A time that the service named, by this host's clock, which may be wrong."""
    if at is None or answer.server_time is None:
        return at
    skew = now - answer.server_time
    return at + skew if abs(skew) > _SKEW_SECONDS else at


def _stale(deadline: float, now: float) -> bool:
    return now - deadline > STALE_SECONDS
