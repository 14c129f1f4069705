"""A notice, and what gives one."""

from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["end", "rebalance"]


@dataclass(frozen=True)
class Notice:
    """That a machine will be taken away, or is likely to be, or that a person wants the gang to end."""

    source: str
    kind: Kind
    deadline: float | None
    """Unix time, by this host's clock, after which nothing more can be done; 0: at once; None: there is no hurry."""
    text: str
    """For people. Two notices of a source with the same text are one."""


class NoAnswer(Exception):
    """The source cannot be asked, or did not answer; the text is one line that says why."""


class Source(Protocol):
    """Something that may give notice. Used by one thread at a time."""

    name: str
    foretells: bool
    """It tells ahead that the machine is taken away, which is what people mean by a source of notices."""

    def ask(self) -> Notice | None:
        """The notice, if there is one. Takes as long as it takes: others are asked meanwhile. Raises NoAnswer."""
