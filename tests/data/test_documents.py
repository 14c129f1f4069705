"""Reading documents."""

import builtins
import json
from pathlib import Path

import pytest

from convoy.config.data import DatasetCorpus, FilesCorpus
from convoy.config.errors import ConfigError
from convoy.data.documents import Documents, without_surrogates
from convoy.data.sources import list_files


def _documents(corpus: FilesCorpus | DatasetCorpus, fraction: float = 0.3) -> Documents:
    return Documents(corpus, list_files(corpus), fraction)


def _files(path: Path, format: str = "text", **more: object) -> FilesCorpus:  # noqa: A002
    return FilesCorpus.model_validate({"kind": "files", "path": str(path), "format": format, **more})


def _lines(path: Path, *lines: str) -> FilesCorpus:
    path.write_text("\n".join(lines) + "\n")
    return _files(path, "jsonl")


def test_each_text_file_is_a_document_in_name_order_each_time(tmp_path: Path) -> None:
    for i in range(50):
        (tmp_path / f"{i:02d}.txt").write_text(f"text {i}")
    documents = _documents(_files(tmp_path))
    assert [document.text for document in documents] == [f"text {i}" for i in range(50)]
    assert list(documents) == list(documents)


def test_files_that_are_not_utf_8_are_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("fine")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "c.txt").write_text("größer")
    documents = _documents(_files(tmp_path))
    assert [document.text for document in documents] == ["fine", "größer"]
    assert documents.skipped_files == 1
    list(documents)
    assert documents.skipped_files == 1


def test_empty_documents_are_left_out(tmp_path: Path) -> None:
    for name, text in {"a": "x", "b": "", "c": "y"}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    assert [document.text for document in _documents(_files(tmp_path))] == ["x", "y"]


def test_all_documents_of_a_file_are_on_one_side(tmp_path: Path) -> None:
    for i in range(20):
        _lines(tmp_path / f"{i}.jsonl", *(json.dumps({"text": f"{i} {j}"}) for j in range(3)))
    sides: dict[str, set[bool]] = {}
    for document in _documents(_files(tmp_path, "jsonl")):
        sides.setdefault(document.text.split()[0], set()).add(document.validation)
    assert all(len(side) == 1 for side in sides.values())
    assert set.union(*sides.values()) == {True, False}


def test_a_single_file_is_divided_by_document(tmp_path: Path) -> None:
    corpus = _lines(tmp_path / "a.jsonl", *(json.dumps({"text": f"t{i}"}) for i in range(100)))
    held_out = [document.text for document in _documents(corpus, 0.2) if document.validation]
    assert 5 <= len(held_out) <= 40
    assert held_out == [document.text for document in _documents(corpus, 0.2) if document.validation]


def test_a_single_document_cannot_be_divided(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alone")
    with pytest.raises(ConfigError, match="only 1 document"):
        _documents(_files(tmp_path))


def test_another_field_of_json_lines_can_be_the_text_and_blank_lines_are_no_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "a", "text": 1}\n\n{"body": "b"}\n  \n')
    assert [d.text for d in _documents(_files(tmp_path / "a.jsonl", "jsonl", field="body"))] == ["a", "b"]


@pytest.mark.parametrize("line", ['{"body": "x"}', '{"text": 5}', '["text"]', '"text"', "null"])
def test_a_json_line_without_the_text_is_named_by_file_and_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=rf"^data.corpus.field = text: {tmp_path}/a.jsonl:2: "):
        list(_documents(_lines(tmp_path / "a.jsonl", '{"text": "a"}', line)))


@pytest.mark.parametrize("line", [b"{oops", b'{"text": "\xff"}'])
def test_a_line_that_is_not_json_is_named_by_file_and_line(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n\n' + line + b"\n")
    with pytest.raises(ConfigError, match=rf"^data.corpus: {tmp_path}/a.jsonl:3: not JSON: "):
        list(_documents(_files(tmp_path / "a.jsonl", "jsonl")))


def test_lone_surrogates_are_replaced() -> None:
    assert without_surrogates("a\ud800b") == "a\ufffdb"
    assert without_surrogates("a\U0001f600é") == "a\U0001f600é"


def test_a_file_that_disappears_is_named(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    documents = _documents(_files(tmp_path))
    (tmp_path / "b.txt").unlink()
    with pytest.raises(ConfigError, match=rf"^data.corpus: cannot read {tmp_path}/b.txt: No such file"):
        list(documents)


def _dataset(path: Path, **columns: list[object]) -> DatasetCorpus:
    from datasets import Dataset

    Dataset.from_dict(columns).save_to_disk(path)
    return DatasetCorpus(kind="hf", path=str(path))


def test_rows_of_a_dataset_are_documents_divided_by_row(tmp_path: Path) -> None:
    documents = list(_documents(_dataset(tmp_path / "d", text=[f"row {i}" for i in range(30)])))
    assert [document.text for document in documents] == [f"row {i}" for i in range(30)]
    assert {document.validation for document in documents} == {True, False}


def test_of_a_dataset_dict_the_train_split_is_used(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    both = {"train": Dataset.from_dict({"text": ["a", "b"]}), "test": Dataset.from_dict({"text": ["c"]})}
    DatasetDict(both).save_to_disk(tmp_path / "d")
    assert [d.text for d in _documents(DatasetCorpus(kind="hf", path=str(tmp_path / "d")))] == ["a", "b"]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"body": ["a"], "title": ["c"]}, "data.corpus.field = text: no such column; there are body, title"),
        ({"text": [1, 2]}, "data.corpus.field = text: the column holds int, not text"),
        ({}, "data.corpus.path = {here}: not a dataset"),
    ],
)
def test_what_is_no_dataset_of_texts_is_refused(columns: dict[str, list[object]], reason: str, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    corpus = _dataset(tmp_path / "d", **columns) if columns else DatasetCorpus(kind="hf", path=str(tmp_path))
    with pytest.raises(ConfigError) as refused:
        list(_documents(corpus))
    assert str(refused.value).startswith(reason.format(here=tmp_path))


def test_without_the_extra_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = _dataset(tmp_path / "d", text=["a", "b"])
    importing = builtins.__import__

    def without(name: str, *args: object, **more: object) -> object:
        if name == "datasets":
            raise ImportError(name)
        return importing(name, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"^data.corpus.kind = hf: needs the extra: pip install"):
        _documents(corpus)


@pytest.mark.parametrize("damage", ["no rows", "state", "info"])
def test_a_dataset_that_is_damaged_is_refused_in_a_line(damage: str, tmp_path: Path) -> None:
    corpus = _dataset(tmp_path, text=[] if damage == "no rows" else ["a", "b"])
    if damage == "state":
        (tmp_path / "state.json").write_text("{}")
    elif damage == "info":
        (tmp_path / "dataset_info.json").write_text('{"features": 5}')
    with pytest.raises(ConfigError, match=r"^data\.(corpus\.path|validation_fraction) = ") as error:
        _documents(corpus)
    assert "\n" not in str(error.value)
