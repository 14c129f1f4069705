"""The seam between Convoy's files and where they are kept: what a store does, and what an object may be called.

Names are those of folders and of a file, with `/` between them, and lead below the root only. Whoever can write to a
store can write any name into its objects. So a name that is read from an object is checked when the object is parsed,
as a `Component`, and a store refuses every other name once more.
"""

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

from pydantic import AfterValidator

if TYPE_CHECKING:
    from convoy.storage.log import BackgroundLog


class ObjectMissing(KeyError):
    """No object of that name."""

    def __str__(self) -> str:
        return f"no object {self.args[0]}"


class StoreUnavailable(OSError):
    """The store did not answer, or refused: an outage, not damage."""


class StoreUnfit(RuntimeError):
    """The store does not keep a promise that Convoy builds on; the text is one line."""


@dataclass(frozen=True)
class ObjectInfo:
    """What a listing has of an object."""

    bytes: int
    modified: float
    """Unix time, by the store's own clock."""


FLUSH_SECONDS = 60.0
"""A storage that has not taken a log by then is out of reach."""


class Store(Protocol):
    """Objects named by relative paths with `/`. All errors but ObjectMissing are StoreUnavailable."""

    uri: str

    def create(self, name: str, data: bytes, *, private: bool = False) -> bool:
        """Write the object atomically, only if absent. True: ours is there. False: another was there before.

        private: in a folder, only its owner may read it, whatever the umask; in a bucket, policies decide as for
        every object.
        """

    def write(self, name: str, data: bytes) -> None:
        """Write the object atomically, replacing what was there."""

    def read(self, name: str, start: int = 0) -> bytes:
        """Bytes from `start` to the end. Raises ObjectMissing."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of every object whose name starts with `prefix`, in name order."""

    def top_folders(self) -> list[str]:
        """First parts of the names that have several, in order; what lies below them is not listed."""

    def listing(self, prefix: str) -> dict[str, ObjectInfo]:
        """Every object whose name starts with `prefix`, in name order."""

    def put(self, name: str, data: memoryview, chunk_bytes: int, threads: int = 4) -> list[int]:
        """Write a large new object, durable on return: the CRC32C of each chunk, taken of what is handed over.

        Chunks go out in parallel; on S3 as parts of a multipart upload, each with its CRC32C for S3 to check; to
        Google one after the other in one upload. The name must be new: nothing is ever replaced. A failed put leaves
        no visible object in a bucket, and on POSIX at most a file that no part record names.
        """

    def read_into(self, name: str, start: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `start` on; the bytes that there were, fewer where the object ends before.

        May be called by many threads at once. Raises ObjectMissing.
        """

    def drop_cache(self, name: str) -> None:
        """Have this host forget what it has cached of the object, so that the next read comes from the storage."""

    def now(self) -> float:
        """Unix time by the clock of the times in `listing`."""

    def prove(self) -> None:
        """Check what commits stand on: of two create-only-if-absent, the second fails. Raises StoreUnfit."""

    def probe_write(self, name: str) -> None:
        """Write a few bytes durably and read them back, to see whether the store does that at all.

        No listing has them, and nothing stays; on an object store they are an object of that name, which stays
        until it is deleted. Raises StoreUnavailable, also where the store is full.
        """

    def abort_multipart_uploads(self, prefix: str, begun_before: float, spared: tuple[str, ...] = ()) -> int:
        """Abort multipart uploads below `prefix` begun before that time (as `now`); how many. 0 but on S3.

        spared: prefixes below which none is aborted, however old.
        """

    def delete(self, name: str) -> None:
        """Remove the object; no error if it is absent."""

    def open_log(self, prefix: str) -> "BackgroundLog":
        """A log at `prefix`.jsonl, or on object stores in numbered immutable segments below `prefix`/."""


def prove(store: Store) -> None:
    """Create an object twice: the second time must be refused and change nothing. Raises StoreUnfit."""
    name = f"proofs/{uuid.uuid4().hex}"
    try:
        if not store.create(name, b"first"):
            raise StoreUnfit(f"{store.uri}: says that an object exists which nobody has made")
        if store.create(name, b"second"):
            raise StoreUnfit(f"{store.uri}: replaces an object that was to be created only if absent")
        if (read := store.read(name)) != b"first":
            raise StoreUnfit(f"{store.uri}: an object that was just created reads as {read!r}")
    finally:
        store.delete(name)


MAX_BYTES = 255
"""Of a component; no common file system takes longer ones."""


def is_component(text: str) -> bool:
    """Whether the text can be the name of one file in a folder."""
    fits = len(text.encode(errors="surrogatepass")) <= MAX_BYTES
    return fits and text not in ("", ".", "..") and "/" not in text and "\0" not in text


def is_object_name(text: str) -> bool:
    """Whether the text can be the name of an object: one component, or several with `/` between them."""
    return all(map(is_component, text.split("/")))


def check_name(uri: str, name: str) -> None:
    """Raise StoreUnavailable for what is not the name of an object in the store at `uri`."""
    if not is_object_name(name):
        raise StoreUnavailable(f"{uri}: {name!r} is not the name of an object there")


def check_prefix(uri: str, prefix: str) -> None:
    """The same for the beginning of names: its last component may be cut anywhere."""
    folder = prefix.rpartition("/")[0]
    if folder:
        check_name(uri, folder)


def _check_component(text: str) -> str:
    if not is_component(text):
        raise ValueError(f"{text!r} is not the name of one file")
    return text


Component = Annotated[str, AfterValidator(_check_component)]
"""A field that becomes one component of a name, in an object that is read from a store."""

OptionalComponent = Annotated[str, AfterValidator(lambda text: text and _check_component(text))]
"""The same, where empty text means none."""
