"""The line that a worker leaves for its agent: why it ends. Errors of a user's own code may hold any text, or none."""

import contextlib
from pathlib import Path


def leave_reason(file: Path, text: str) -> None:
    """text: one line, which may hold what no file can, such as half of a surrogate pair."""
    file.write_text(text, errors="backslashreplace")


def named(error: BaseException) -> str:
    """The error's type, and the first line of its text."""
    return f"{type(error).__name__}: {first_line(error)}"


def first_line(error: object) -> str:
    """Of its text; empty where there is none, or where to ask for it fails."""
    with contextlib.suppress(Exception):
        return next(iter(str(error).strip().splitlines()), "")
    return ""
