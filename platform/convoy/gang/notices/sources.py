"""What may give notice to a node: EC2, Metaflow's monitor, a signal, `convoy drain`; which of them answer here.

Sources: AWS EC2 user guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations" and "Detect
whether a host is an EC2 instance".
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from convoy.config.json_text import parse_json
from convoy.config.train import NoticesConfig
from convoy.gang.notices.imds import Answer, Imds
from convoy.gang.notices.notice import DEADLINE_SECONDS, NoAnswerError, Notice, NoticeSource, SourceStatus, poll_once
from convoy.gang.stop_signals import EndingSignals
from convoy.gang.task import NOTICE_FILE
from convoy.job.events.registry import INTERRUPT
from convoy.storage import ObjectMissing, Store, StoreUnavailable

DRAIN = "drain.json"


class DrainRequest(BaseModel, frozen=True):
    """A person's request that one run of the job ends soon: `drain.json` in the job's root, from `convoy drain`."""

    run: str
    """Metaflow pathspec of the run that is to end."""
    now: bool
    """End on the last commit, rather than save first."""
    host: str
    """Where the request was made."""
    requested: float
    """Unix time, by the clock of that host."""


class InvalidDrainError(RuntimeError):
    """The object in place of a drain request is not one."""


def request_drain(store: Store, request: DrainRequest) -> None:
    """Leave the request for the run; it replaces an earlier one. Raises StoreUnavailable."""
    store.write(DRAIN, request.model_dump_json(indent=1).encode())


def read_drain(store: Store) -> DrainRequest | None:
    """The newest request. Raises StoreUnavailable, InvalidDrainError."""
    try:
        data = store.read(DRAIN)
    except ObjectMissing:
        return None
    try:
        return DrainRequest.model_validate_json(data)
    except ValidationError:
        raise InvalidDrainError(f"{store.uri}/{DRAIN}: {len(data)} bytes that are not a drain") from None


STALE_SECONDS = 600.0
"""A machine that is still there this long after it was to be reclaimed will stay."""

INTERRUPT_SECONDS = 4.0
"""After Ctrl-C Metaflow's local runtime gives its tasks 4 to 5 s, and then kills them.

Source: metaflow 2.19.39, `NativeRuntime._killall`.
"""

_SKEW_SECONDS = 2.0
"""Clocks that differ by less count as equal: the service reports its time in whole seconds."""


@dataclass
class SpotSource:
    """The notice of a spot interruption, two minutes ahead where EC2 can give it."""

    imds: Imds
    deadline_seconds: float
    """For an answer without a readable time."""
    clock: Callable[[], float] = time.time
    name = "spot"
    foretells = True

    def poll(self) -> Notice | None:
        answer = self.imds.get("meta-data/spot/instance-action")
        now = self.clock()
        if answer is None:
            return None
        content = _parse_json_object(answer, "meta-data/spot/instance-action")
        action, at = content.get("action"), content.get("time")
        if not isinstance(action, str):
            raise NoAnswerError(f"meta-data/spot/instance-action: names no action: {answer.text[:80]}")
        deadline = _by_own_clock(iso_to_unix(at), answer, now)
        if deadline is not None and _is_stale(deadline, now):
            return None
        if action == "hibernate":  # begins at once, and the machine may return
            return Notice(self.name, "end", 0, f"EC2 hibernates this spot instance (notice of {at})")
        if deadline is None:
            return Notice(self.name, "end", now + self.deadline_seconds, f"EC2 will {action} this spot instance soon")
        return Notice(self.name, "end", deadline, f"EC2 will {action} this spot instance at {at}")


@dataclass
class RebalanceSource:
    """The recommendation to leave a spot instance because its risk of an interruption is raised.

    It remains for the instance's life. One that was there at the first poll is no news: the attempt was placed on this
    machine in spite of it, and leaving at once would repeat for ever.
    """

    imds: Imds
    at_first: str | None = None
    """The first answer."""
    name = "rebalance"
    foretells = True

    def poll(self) -> Notice | None:
        answer = self.imds.get("meta-data/events/recommendations/rebalance")
        text = answer.text if answer is not None else ""
        if self.at_first is None:
            self.at_first = text
        if answer is None or text == self.at_first:
            return None
        at = _parse_json_object(answer, "meta-data/events/recommendations/rebalance").get("noticeTime")
        return Notice(self.name, "rebalance", None, f"EC2 recommends leaving this spot instance (notice of {at})")


@dataclass
class NoticeFileSource:
    """The file that Metaflow's monitor writes; while there is none, it is unknown whether anyone would write it."""

    path: Path
    deadline_seconds: float
    """For a file without a readable time."""
    clock: Callable[[], float] = time.time
    name = "metaflow"
    foretells = True

    def poll(self) -> Notice | None:
        try:
            text = self.path.read_text(errors="replace").strip()
            written = self.path.stat().st_mtime
        except FileNotFoundError:
            raise NoAnswerError(f"{self.path}: not there, and would be only with a notice") from None
        except OSError as error:
            raise NoAnswerError(f"{self.path}: {error.strerror}") from None
        if not text:  # opened, and not written yet
            return None
        named = iso_to_unix(text)
        deadline = written + self.deadline_seconds if named is None else named
        if _is_stale(deadline, self.clock()):
            return None
        return Notice(self.name, "end", deadline, f"Metaflow: this spot instance is reclaimed ({text[:80]})")


@dataclass
class SignalSource:
    """A signal that asks this process to end: how most platforms end one, with some time before SIGKILL, and Ctrl-C and
    the end of its terminal, which a run on this machine gets with all its processes."""

    signals: EndingSignals
    deadline_seconds: float
    name = "signal"
    foretells = False

    def poll(self) -> Notice | None:
        received = list(self.signals.received)
        interrupts = [at for number, at in received if number == signal.SIGINT]
        if len(interrupts) > 1:
            return Notice(INTERRUPT, "end", 0, "Ctrl-C, twice")
        if interrupts:
            return Notice(INTERRUPT, "end", interrupts[0] + INTERRUPT_SECONDS, "Ctrl-C")
        if not received:
            return None
        number, at = received[0]
        if number == signal.SIGHUP:
            return Notice(INTERRUPT, "end", at + self.deadline_seconds, "its terminal was closed")
        return Notice("sigterm", "end", at + self.deadline_seconds, "SIGTERM to the agent")


@dataclass
class LauncherSource:
    """The end of the process that started this one: on this machine that is the run itself, and nobody would continue
    the flow after this step."""

    deadline_seconds: float
    clock: Callable[[], float] = time.time
    launcher: int = field(default_factory=os.getppid)
    name = "launcher"
    foretells = False

    def poll(self) -> Notice | None:
        if os.getppid() == self.launcher:
            return None
        text = f"the run's own process (pid {self.launcher}) is gone"
        return Notice(INTERRUPT, "end", self.clock() + self.deadline_seconds, text)


@dataclass
class DrainSource:
    """A person requests that this run ends: `convoy drain JOB`."""

    store: Store
    run: str
    name = "drain"
    foretells = False

    def poll(self) -> Notice | None:
        try:
            drain = read_drain(self.store)
        except (StoreUnavailable, InvalidDrainError) as error:
            raise NoAnswerError(str(error)) from None
        if drain is None or drain.run != self.run:
            return None
        how = "convoy drain --now" if drain.now else "convoy drain"
        at = datetime.fromtimestamp(drain.requested, UTC)
        return Notice(self.name, "end", 0 if drain.now else None, f"{how} on {drain.host} at {at:%H:%M:%S} UTC")


def machine_sources(environ: Mapping[str, str], config: NoticesConfig, file: Path = NOTICE_FILE) -> list[NoticeSource]:
    """The sources of notices of this machine's end, apart from SIGTERM.

    file: of Metaflow's monitor, `current.spot_termination_notice` where there is one.
    """
    return [  # a client each, since a client serves one thread
        SpotSource(Imds(environ), config.deadline_seconds),
        RebalanceSource(Imds(environ)),
        NoticeFileSource(file, config.deadline_seconds),
    ]


def iso_to_unix(text: object) -> float | None:
    """Unix time of an ISO 8601 time, UTC unless it says otherwise; None if it is not one."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _parse_json_object(answer: Answer, path: str) -> dict[str, Any]:
    """Raises NoAnswerError: what is not understood is not a notice, since a notice ends the attempt."""
    try:
        content = parse_json(answer.text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise NoAnswerError(f"{path}: not understood: {answer.text[:80]}")
    return content


def _by_own_clock(at: float | None, answer: Answer, now: float) -> float | None:
    """A time of the service, by this host's clock, which may be wrong."""
    if at is None or answer.server_time is None:
        return at
    skew = now - answer.server_time
    return at + skew if abs(skew) > _SKEW_SECONDS else at


def _is_stale(deadline: float, now: float) -> bool:
    return now - deadline > STALE_SECONDS


_VENDORS = ("sys_vendor", "board_vendor", "bios_vendor")
_HINT = "a pod needs --http-put-response-hop-limit 2 in its instance's metadata options"


def is_on_ec2(sysfs: Path = Path("/sys")) -> bool:
    """Whether this is an EC2 instance, by its firmware. A file that cannot be read says nothing."""
    for name in _VENDORS:
        with contextlib.suppress(OSError):
            if "amazon" in (sysfs / "devices/virtual/dmi/id" / name).read_text().lower():
                return True
    return False


def may_have_metadata(environ: Mapping[str, str], sysfs: Path = Path("/sys")) -> bool:
    """Whether it is worth requesting an instance's metadata: elsewhere a request may take seconds to fail."""
    return "AWS_EC2_METADATA_SERVICE_ENDPOINT" in environ or is_on_ec2(sysfs)


def poll_machine_sources(
    environ: Mapping[str, str], sysfs: Path = Path("/sys"), seconds: float = DEADLINE_SECONDS
) -> list[SourceStatus]:
    """The status of each source of this machine's notices; empty where there can be none. seconds: most it takes."""
    return poll_once(machine_sources(environ, NoticesConfig()), seconds) if may_have_metadata(environ, sysfs) else []


def describe_statuses(statuses: Sequence[SourceStatus]) -> str:
    """In one line."""
    answering = [status.source for status in statuses if status.answers]
    if answering:
        return f"notices of this machine's end come from {', '.join(answering)}"
    why = next((status.problem for status in statuses), "this is no EC2 instance")
    hint = f"; {_HINT}" if statuses else ""
    return f"no notice source: {why}{hint}"
