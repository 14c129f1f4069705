"""The seam between Convoy's files and where they are kept."""

from typing import Protocol


class ObjectMissing(KeyError):
    """No object of that name."""

    def __str__(self) -> str:
        return f"no object {self.args[0]}"


class StoreUnavailable(OSError):
    """The store did not answer, or refused: an outage, not damage."""


class Appender(Protocol):
    """A log that one writer appends to."""

    def append(self, line: bytes) -> None:
        """Add one line (without its newline). Durable at the latest after `flush`."""

    def flush(self) -> None:
        """Make every line appended so far visible to readers."""

    def close(self) -> None:
        """Flush, and release what the appender holds."""


class Store(Protocol):
    """Objects named by relative paths with `/`. All errors but ObjectMissing are StoreUnavailable."""

    uri: str

    def create(self, name: str, data: bytes) -> bool:
        """Write the object atomically, only if absent. True: ours is there. False: another was there before."""

    def write(self, name: str, data: bytes) -> None:
        """Write the object atomically, replacing what was there."""

    def read(self, name: str, start: int = 0) -> bytes:
        """Bytes from `start` to the end. Raises ObjectMissing."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of every object whose name starts with `prefix`, in name order."""

    def delete(self, name: str) -> None:
        """Remove the object; no error if it is absent."""

    def appender(self, prefix: str) -> Appender:
        """A log at `prefix`.jsonl, or on object stores in numbered immutable segments below `prefix`/."""
