"""The texts of a corpus, one document at a time, in the order of file names."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from convoy.config.data import DatasetCorpus, FilesCorpus, StdlibCorpus
from convoy.config.errors import ConfigError, PrerequisiteMissing
from convoy.config.json_text import parse_json
from convoy.data.sources import SourceFile, held_out_names, is_s3_path, open_s3fs, read_error_types, unreadable_error

TextCorpus = StdlibCorpus | FilesCorpus | DatasetCorpus

_READ_AHEAD = 16
_ROWS_AT_A_TIME = 1000


@dataclass(frozen=True)
class Document:
    """One text."""

    text: str
    validation: bool
    """Held out."""


@dataclass
class Documents:
    """The documents of a text corpus; can be iterated over several times, and reads the files each time."""

    corpus: TextCorpus
    files: list[SourceFile]
    validation_fraction: float
    skipped_files: int = 0
    """Of the last pass: files that are not UTF-8."""
    _held_out: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        names = [file.name for file in self.files]
        if isinstance(self.corpus, DatasetCorpus) or len(names) == 1:
            names = [str(i) for i in range(self._count_documents())]
        self._held_out = held_out_names(names, self.validation_fraction)

    def __iter__(self) -> Iterator[Document]:
        self.skipped_files = 0
        by_index = isinstance(self.corpus, DatasetCorpus) or len(self.files) == 1
        for i, (name, text) in enumerate(self._named_texts()):
            if text:
                yield Document(text, (str(i) if by_index else name) in self._held_out)

    def _count_documents(self) -> int:
        """Documents of a single file."""
        if isinstance(self.corpus, DatasetCorpus):
            return len(_open_dataset(self.corpus))
        return sum(1 for _ in self._named_texts())

    def _named_texts(self) -> Iterator[tuple[str, str]]:
        """Name of the file, and text of each of its documents."""
        if isinstance(self.corpus, DatasetCorpus):
            yield from (("", text) for text in _row_texts(self.corpus))
        elif isinstance(self.corpus, FilesCorpus) and self.corpus.format == "jsonl":
            for file in self.files:
                yield from ((file.name, text) for text in _json_line_texts(file, self.corpus))
        else:
            remote = isinstance(self.corpus, FilesCorpus) and is_s3_path(self.corpus.path)
            for file, content in _files_with_content(self.files, remote):
                try:
                    yield file.name, content.decode()
                except UnicodeDecodeError:
                    self.skipped_files += 1


def _files_with_content(files: list[SourceFile], remote: bool) -> Iterator[tuple[SourceFile, bytes]]:
    """Each file with its content, read by threads a few files ahead."""
    filesystem = open_s3fs() if remote else None

    def read(file: SourceFile) -> bytes:
        try:
            if filesystem is not None:
                return bytes(filesystem.cat_file(file.location))
            with open(file.location, "rb") as stream:
                return stream.read()
        except read_error_types(remote) as error:
            raise unreadable_error(file.location, error) from None

    with ThreadPoolExecutor(_READ_AHEAD) as pool:
        rest = iter(files)
        ahead: list[tuple[SourceFile, Future[bytes]]] = [(f, pool.submit(read, f)) for f in islice(rest, _READ_AHEAD)]
        while ahead:
            file, content = ahead.pop(0)
            ahead += [(f, pool.submit(read, f)) for f in islice(rest, 1)]
            yield file, content.result()


def _json_line_texts(file: SourceFile, corpus: FilesCorpus) -> Iterator[str]:
    try:
        remote = is_s3_path(corpus.path)
        with open_s3fs().open(file.location) if remote else open(file.location, "rb") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield _text_of_line(line, corpus.field, f"{file.location}:{number}")
    except read_error_types(is_s3_path(corpus.path)) as error:
        raise unreadable_error(file.location, error) from None


def _text_of_line(line: bytes, key: str, place: str) -> str:
    try:
        value = parse_json(line)
    except ValueError as error:  # also UnicodeDecodeError
        raise ConfigError(f"data.corpus: {place}: not JSON: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get(key), str):
        raise ConfigError(f"data.corpus.field = {key}: {place}: the line has no such key with a text")
    return without_surrogates(value[key])


def without_surrogates(text: str) -> str:
    """The text with each lone surrogate, which JSON can hold and UTF-8 cannot, replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _row_texts(corpus: DatasetCorpus) -> Iterator[str]:
    dataset = _open_dataset(corpus)
    pages = dataset.select_columns([corpus.field]).iter(_ROWS_AT_A_TIME)
    while True:
        try:
            rows = next(pages, None)
        except (ValueError, OSError) as error:  # text that is not UTF-8, or a file that is cut
            raise ConfigError(f"data.corpus.path = {corpus.path}: cannot be read: {error}") from None
        if rows is None:
            return
        for text in rows[corpus.field]:
            if not isinstance(text, str):
                raise ConfigError(
                    f"data.corpus.field = {corpus.field}: the column holds {type(text).__name__}, not text"
                )
            yield text


def no_datasets_extra_error() -> PrerequisiteMissing:
    """That the extra for Hugging Face datasets is not installed."""
    return PrerequisiteMissing("data.corpus.kind = hf: needs the extra: pip install 'metaflow-convoy[datasets]'")


def _open_dataset(corpus: DatasetCorpus) -> Any:
    try:
        from datasets import DatasetDict, load_from_disk  # takes seconds to import, and is an extra
    except ImportError:
        raise no_datasets_extra_error() from None
    try:
        dataset = load_from_disk(str(Path(corpus.path).expanduser()))
    except Exception as error:  # of a damaged one the library raises whatever comes
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"data.corpus.path = {corpus.path}: not a dataset that save_to_disk wrote: {why}") from None
    if isinstance(dataset, DatasetDict):
        if "train" not in dataset:
            raise ConfigError(f"data.corpus.path = {corpus.path}: has no split train, only {', '.join(dataset)}")
        dataset = dataset["train"]
    if corpus.field not in dataset.column_names:
        columns = ", ".join(dataset.column_names)
        raise ConfigError(f"data.corpus.field = {corpus.field}: no such column; there are {columns}")
    return dataset
