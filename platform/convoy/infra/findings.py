"""What a check of an account answers, and how the checks of a backend run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

from botocore.exceptions import ClientError
from pydantic import BaseModel, ConfigDict

from convoy.config.errors import one_line, printable
from convoy.storage.s3_client import error_code

A = TypeVar("A", contravariant=True)
T = TypeVar("T")

Status = Literal["ok", "missing", "warning"]

DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403")
"""Codes with which AWS refuses a call that the caller may not make."""


class UnansweredError(Exception):
    """A service did not answer the question of a check; the text says why."""


class Answer(NamedTuple):
    """What one check saw."""

    status: Status
    seen: str
    wanted: str = ""
    fix: str = ""
    """What to do about it; empty if it is ok."""


class Finding(BaseModel):
    """The answer of one check, with the name of the check."""

    model_config = ConfigDict(frozen=True)

    name: str
    status: Status
    seen: str
    wanted: str
    fix: str

    def line(self) -> str:
        text = f"{self.status:<8} {self.name}: {self.seen}"
        return printable(text if self.status == "ok" else f"{text}; wanted: {self.wanted}; to fix it, {self.fix}")


@dataclass(frozen=True)
class Check(Generic[A]):
    """One thing that an account must have."""

    name: str
    look: Callable[[A], Answer | None]
    """None: it depends on something that another check reports as missing."""


def judge(good: bool, seen: str, wanted: str, fix: str) -> Answer:
    """`ok` if it is good, else `missing`."""
    return Answer("ok", seen, wanted) if good else Answer("missing", seen, wanted, fix)


def run_checks(checks: Sequence[Check[T]], account: T) -> list[Finding]:
    """The findings, in the order of the checks. A question that a service does not answer is a finding too, once: what
    else depends on it is not checked."""
    findings, unanswered = list[Finding](), set[str]()
    for check in checks:
        try:
            answer = check.look(account)
        except (ClientError, UnansweredError) as error:
            text = one_line(error)
            answer = None if text in unanswered else Answer("missing", text, "an answer", _fix(error))
            unanswered.add(text)
        if answer is not None:
            findings.append(Finding(name=check.name, **answer._asdict()))
    return findings


def _fix(error: ClientError | UnansweredError) -> str:
    if isinstance(error, UnansweredError):
        return "ask for permission to read it"
    if error_code(error) in DENIED:
        return f"ask for permission to call {error.operation_name}"
    return "see the documentation of this error"


def answer_or_none(call: Callable[[], T], *codes: str) -> T | None:
    """What the call returns; None if AWS answers with one of these error codes: there is no such thing."""
    try:
        return call()
    except ClientError as error:
        if error_code(error) in codes:
            return None
        raise
