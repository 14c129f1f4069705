"""JSON of a user or a store: what Python cannot read is refused like any other bad text."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from convoy.checkpoint.format import DamagedCommitError, parsed
from convoy.config.data import FileTokenizer
from convoy.config.errors import ConfigError
from convoy.config.json_text import parse_json
from convoy.data.documents import _text_of_line
from convoy.data.tokenizer import read_tokenizer_json
from convoy.job.events.log import EventReader
from convoy.job.record import read_config
from convoy.launch.parse import parse_overrides
from convoy.model.hf_config import read_hf_config
from convoy.storage import open_store

DEEP = "[" * 200_000 + "]" * 200_000


def test_json_is_read() -> None:
    assert parse_json('{"a": [1, 2.5]}') == parse_json(b'{"a": [1, 2.5]}') == {"a": [1, 2.5]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With deep JSON wherever something reads JSON from it."""
    for name in ("config.json", "tokenizer.json", "configs/x.json", "events/a.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(DEEP + "\n")
    return tmp_path


READERS: dict[str, Callable[[Path], object]] = {
    "a line of a corpus": lambda folder: _text_of_line(DEEP.encode(), "text", "a.jsonl"),
    "a model's config.json": read_hf_config,
    "a tokenizer.json": lambda folder: read_tokenizer_json(
        FileTokenizer(kind="file", path=str(folder / "tokenizer.json"))
    ),
    "a job's configuration": lambda folder: read_config(open_store(str(folder)), "x"),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_what_is_nested_too_deep_is_refused_in_one_line(folder: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(ConfigError) as refused:
        read(folder)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 200 + len(os.fspath(folder))


def test_overrides_nested_too_deep_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_overrides('{"model": ' + DEEP + "}")
    (line,) = capsys.readouterr().err.splitlines()
    assert len(line) < 200


def test_a_commit_or_an_event_nested_too_deep_is_damaged(folder: Path) -> None:
    with pytest.raises(DamagedCommitError):
        parsed(DEEP.encode(), "a commit")
    reader = EventReader(open_store(str(folder)))
    assert reader.poll() == []
    assert reader.damaged == 1
