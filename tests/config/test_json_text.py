"""JSON and YAML of a user or a store: what Python cannot read is refused like any other bad text."""

import datetime
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from convoy.checkpoint.format import DamagedCommitError, parse_commit
from convoy.config.data import FileTokenizer
from convoy.config.errors import ConfigError
from convoy.config.json_text import parse_json
from convoy.config.yaml_text import YamlError, parse_yaml
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


@pytest.mark.processes
def test_overrides_nested_too_deep_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_overrides('{"model": ' + DEEP + "}")
    (line,) = capsys.readouterr().err.splitlines()
    assert len(line) < 200


def test_a_commit_nested_too_deep_is_damaged_and_such_an_event_is_passed_over(folder: Path) -> None:
    with pytest.raises(DamagedCommitError):
        parse_commit(DEEP.encode(), "a commit")
    store = open_store(str(folder))
    assert list(store.sizes("events/")) == ["events/a.jsonl"]
    assert EventReader(store).poll() == []


@pytest.mark.parametrize("text", ["1e-3", "3e4", "+2.5E-1", "-1e+2", ".5e1", "1.e1"])
def test_a_number_with_an_exponent_is_a_number(text: str) -> None:
    assert parse_yaml(text) == float(text)


@pytest.mark.parametrize("text", ["e5", "1e", "1e5x", "1-e5"])
def test_what_only_looks_like_one_is_text(text: str) -> None:
    assert parse_yaml(text) == text


def test_a_date_is_text() -> None:
    assert parse_yaml("day: 2026-11-20") == {"day": "2026-11-20"}


@pytest.mark.parametrize("text", ["1:30", "120:00", "-1:30", "1:30:00.5"])
def test_a_time_is_text_and_no_number_in_sixties(text: str) -> None:
    assert parse_yaml(f"hours: {text}") == {"hours": text}


def test_text_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(YamlError, match=r"^nested too deep$"):
        parse_yaml("[" * 200_000 + "]" * 200_000)


def test_the_loader_of_other_programs_is_left_alone() -> None:
    parse_yaml("2026-11-20")
    assert yaml.safe_load("[2026-11-20, 1e-3]") == [datetime.date(2026, 11, 20), "1e-3"]


@pytest.mark.parametrize("text", ["a: 1\na: 2", "b: {a: 1, a: 1}", "- {a: 1, 'a': 2}"])
def test_a_key_given_twice_is_refused(text: str) -> None:
    with pytest.raises(YamlError, match="the key 'a' appears twice"):
        parse_yaml(text)


def test_a_key_may_be_given_once_in_each_mapping() -> None:
    assert parse_yaml("a: {a: 1}\nb: {a: 2}") == {"a": {"a": 1}, "b": {"a": 2}}


def test_merge_keys_and_anchors_work() -> None:
    text = "base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}"
    assert parse_yaml(text)["other"] == {"a": 1, "b": 3}


@pytest.mark.parametrize("text", ["!!set {a}", "!!binary aGk=", "&x [*x]", "!!python/name:os.system ''", "a: b: c"])
def test_what_json_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(YamlError):
        parse_yaml(text)
