"""The files a corpus consists of, found without reading them."""

import fnmatch
import glob
import hashlib
import os
import stat
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convoy.config.data import Corpus, DatasetCorpus, FilesCorpus, ShardsCorpus, StdlibCorpus
from convoy.config.errors import ConfigError

DEFAULT_SUFFIXES = {"text": (".txt", ".md", ".py"), "jsonl": (".jsonl",)}

_NOT_STDLIB = {"site-packages", "dist-packages", "__pycache__"}
_HASH_CHUNK_BYTES = 1 << 20
_HASH_THREADS = 8


@dataclass(frozen=True)
class SourceFile:
    """One file of a corpus."""

    name: str
    """Relative to the corpus, with `/`: the same wherever the corpus lies."""
    location: str
    """Absolute path, or `bucket/key` on S3."""
    size: int
    """Bytes."""
    stamp: str
    """Changes when the file does: modification and status change times, or the ETag on S3."""


def is_s3_path(path: str) -> bool:
    """Whether the path is on S3."""
    return path.startswith("s3://")


def open_s3fs() -> Any:
    """S3 through s3fs; credentials and `AWS_ENDPOINT_URL` come from boto's own chain."""
    import s3fs  # takes 0.5 s to import

    # A listing kept from before would hide a changed file.
    return s3fs.S3FileSystem(use_listings_cache=False)


def list_files(corpus: Corpus) -> list[SourceFile]:
    """The corpus's files in name order; none for a synthetic corpus. Raises ConfigError when there are none."""
    files = sorted(iterate_files(corpus), key=lambda file: file.name)
    if not files and corpus.kind != "synthetic":
        raise no_files_error(corpus)
    return files


def iterate_files(corpus: Corpus) -> Iterator[SourceFile]:
    """The corpus's files as they are found. Raises ConfigError for a path that cannot be listed."""
    if isinstance(corpus, StdlibCorpus):
        yield from _files_below(sysconfig.get_path("stdlib"), (".py",), skip=_NOT_STDLIB)
    elif isinstance(corpus, FilesCorpus):
        suffixes = corpus.suffixes or DEFAULT_SUFFIXES[corpus.format]
        yield from _s3_files(corpus.path, suffixes) if is_s3_path(corpus.path) else _local_files(corpus.path, suffixes)
    elif isinstance(corpus, ShardsCorpus):
        _refuse_remote(corpus.path)
        yield from _local_files(corpus.path, (".bin",))
    elif isinstance(corpus, DatasetCorpus):
        _refuse_remote(corpus.path)
        if not Path(corpus.path).expanduser().is_dir():
            raise ConfigError(f"data.corpus.path = {corpus.path}: not a folder")
        yield from _files_below(corpus.path, ("",))


def no_files_error(corpus: Corpus) -> ConfigError:
    """That a corpus has no file, and what was looked for."""
    if isinstance(corpus, StdlibCorpus):
        return ConfigError(f"data.corpus.kind = stdlib: no .py files below {sysconfig.get_path('stdlib')}")
    path = getattr(corpus, "path", "")
    if isinstance(corpus, FilesCorpus) and not glob.has_magic(path):
        suffixes = " ".join(corpus.suffixes or DEFAULT_SUFFIXES[corpus.format])
        return ConfigError(f"data.corpus.path = {path}: no files match (data.corpus.suffixes: {suffixes})")
    return ConfigError(f"data.corpus.path = {path}: no files match")


def content_digests(files: list[SourceFile], remote: bool) -> list[str]:
    """A hash of each file's content (on S3: its ETag). Raises ConfigError for a file that cannot be read."""
    if remote:
        return [file.stamp for file in files]
    with ThreadPoolExecutor(_HASH_THREADS) as pool:
        return list(pool.map(_content_digest, files))


def read_error_types(remote: bool) -> tuple[type[Exception], ...]:
    """What reading a file of the corpus may raise."""
    if not remote:
        return (OSError,)
    from aiohttp import ClientError  # which s3fs has imported
    from botocore.exceptions import BotoCoreError

    return (OSError, ClientError, BotoCoreError)


def unreadable_error(location: str, error: Exception) -> ConfigError:
    """That one file of the corpus cannot be read, and why."""
    return ConfigError(f"data.corpus: cannot read {location}: {getattr(error, 'strerror', None) or error}")


def _content_digest(file: SourceFile) -> str:
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open(file.location, "rb") as stream:
            while chunk := stream.read(_HASH_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise unreadable_error(file.location, error) from None
    return digest.hexdigest()


def _refuse_remote(path: str) -> None:
    if is_s3_path(path):
        raise ConfigError(f"data.corpus.path = {path}: must be a local path for this kind of corpus")


def _local_files(path: str, suffixes: tuple[str, ...]) -> Iterator[SourceFile]:
    expanded = Path(path).expanduser()
    if expanded.is_dir():
        yield from _files_below(str(expanded), suffixes)
    elif glob.has_magic(path):
        top = _folder_before_wildcards(str(expanded))
        locations = _glob_paths(top, expanded.parts[0 if top == "." else len(Path(top).parts) :])
        for location in dict.fromkeys(locations):  # two `**` find a file in several ways
            if not Path(location).is_dir():
                yield _stat_source_file(os.path.relpath(location, top), location)
    elif expanded.exists() or expanded.is_symlink():
        yield _stat_source_file(expanded.name, str(expanded))
    else:
        raise ConfigError(f"data.corpus.path = {path}: does not exist")


def _folder_before_wildcards(pattern: str) -> str:
    parts = Path(pattern).parts
    first = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return str(Path(*parts[:first])) if first else "."


def _glob_paths(folder: str, parts: Sequence[str]) -> Iterator[str]:
    """What is in `folder` and matches the rest of a pattern, as with `glob.iglob`, but `**` enters no symbolic link.

    A link may lead to what is found anyway, or back to a folder above it.
    """
    if not parts:
        yield folder
    elif parts[0] == "**":
        if parts[1:]:
            yield from _glob_paths(folder, parts[1:])
        for entry in _matching_entries(folder, "*"):
            if entry.is_dir(follow_symlinks=False):
                yield from _glob_paths(entry.path, parts)
            elif not parts[1:]:
                yield entry.path
    elif glob.has_magic(parts[0]):
        for entry in _matching_entries(folder, parts[0]):
            if not parts[1:] or entry.is_dir():
                yield from _glob_paths(entry.path, parts[1:])
    elif os.path.lexists(location := os.path.join(folder, parts[0])):  # noqa: PTH118
        yield from _glob_paths(location, parts[1:])


def _matching_entries(folder: str, pattern: str) -> list[os.DirEntry[str]]:
    """The entries of a folder that match; hidden ones only where the pattern begins with a dot."""
    try:
        with os.scandir(folder) as entries:
            matching = [entry for entry in entries if fnmatch.fnmatch(entry.name, pattern)]
    except NotADirectoryError:
        return []
    except OSError as error:
        raise unreadable_error(folder, error) from None
    return [entry for entry in matching if pattern.startswith(".") or not entry.name.startswith(".")]


def _files_below(top: str, suffixes: tuple[str, ...], skip: Collection[str] = ()) -> Iterator[SourceFile]:
    for folder, folders, names in os.walk(Path(top).expanduser(), onerror=_raise_unreadable):
        folders[:] = sorted(name for name in folders if name not in skip)
        for name in names:
            if name.endswith(suffixes):
                location = os.path.join(folder, name)  # noqa: PTH118 - five times as fast as pathlib
                yield _stat_source_file(os.path.relpath(location, Path(top).expanduser()), location)


def _raise_unreadable(error: OSError) -> None:
    raise unreadable_error(str(error.filename), error) from None


def _stat_source_file(name: str, location: str) -> SourceFile:
    try:
        status = os.stat(location)  # noqa: PTH116
    except OSError as error:
        raise unreadable_error(location, error) from None
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"data.corpus: cannot read {location}: not a regular file")
    # The status change time catches what a restored modification time hides.
    stamp = f"{status.st_mtime_ns}:{status.st_ctime_ns}"
    return SourceFile(name.replace(os.sep, "/"), os.path.abspath(location), status.st_size, stamp)  # noqa: PTH100


def _s3_files(path: str, suffixes: tuple[str, ...]) -> Iterator[SourceFile]:
    filesystem = open_s3fs()
    bare = path.removeprefix("s3://").rstrip("/")
    magic = glob.has_magic(bare)
    try:
        listing: dict[str, Any] = (filesystem.glob if magic else filesystem.find)(bare, detail=True)
    except Exception as error:  # s3fs passes on what botocore raises, which shares no base with OSError
        raise ConfigError(f"data.corpus.path = {path}: cannot list it: {error}") from None
    top = _folder_before_wildcards(bare) if magic else bare
    for location, facts in listing.items():
        single = location == bare
        if facts.get("type") != "file" or not (magic or single or location.endswith(suffixes)):
            continue
        name = location.rsplit("/", 1)[-1] if single else location[len(top) :].lstrip("/")
        yield SourceFile(name, location, int(facts["size"]), str(facts.get("ETag", "")).strip('"'))


def held_out_names(names: Sequence[str], fraction: float) -> set[str]:
    """The held-out ones of `names`: those whose keyed hash falls below `fraction` of its range.

    Depends on the name alone, so that a growing corpus never moves a file from one side to the other; but at least
    one name is on each side. Raises ConfigError for fewer than two names.
    """
    if len(names) < 2:
        raise ConfigError(
            f"data.validation_fraction = {fraction}: the corpus has only {len(names)} document, and each split needs"
            " at least one; give more files, or JSON lines"
        )
    places = sorted((_hash_fraction(name), name) for name in names)
    chosen = {name for place, name in places if place < fraction}
    if not chosen:
        return {places[0][1]}
    return chosen if len(chosen) < len(places) else chosen - {places[-1][1]}


def _hash_fraction(name: str) -> float:
    """From 0 to 1, evenly spread over names."""
    digest = hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8, person=b"validation").digest()
    return int.from_bytes(digest, "little") / 2**64
