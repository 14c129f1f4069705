"""What is prepared but text: token shards made elsewhere; and what is checked before a run."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest

from convoy.config.data import DataConfig, ShardsCorpus
from convoy.config.errors import ConfigError
from convoy.data.manifest import Shard
from convoy.data.prepare import check_data_config, ready_made_shards
from convoy.data.sources import list_files


def _shards(folder: Path, fraction: float = 0.2, **more: object) -> list[Shard]:
    corpus = ShardsCorpus.model_validate({"kind": "shards", "path": str(folder), "vocab_size": 100, **more})
    return ready_made_shards(corpus, list_files(corpus), fraction)


def _write(path: Path, ids: list[int] | np.ndarray, dtype: str = "<u2") -> None:
    np.asarray(ids).astype(dtype).tofile(path)


def test_files_are_divided_between_the_splits_where_they_lie(tmp_path: Path) -> None:
    for i in range(10):
        _write(tmp_path / f"{i}.bin", np.arange(10 + i))
    shards = _shards(tmp_path)
    assert [shard.path for shard in shards] == [str(tmp_path / f"{i}.bin") for i in range(10)]
    assert [shard.tokens for shard in shards] == list(range(10, 20))
    assert {shard.split for shard in shards} == {"train", "validation"}


def test_the_tail_of_a_single_file_is_held_out(tmp_path: Path) -> None:
    _write(tmp_path / "a.bin", np.arange(1000) % 100)
    train, validation = _shards(tmp_path)
    assert (train.split, train.first_token, train.tokens) == ("train", 0, 800)
    assert (validation.split, validation.first_token, validation.tokens) == ("validation", 800, 200)


def test_the_tail_begins_with_a_document_where_its_end_is_known(tmp_path: Path) -> None:
    ids = np.ones(1000, dtype=int)
    ids[[100, 500, 850, 950]] = 0
    _write(tmp_path / "a.bin", ids)
    train, validation = _shards(tmp_path, eos_id=0)
    assert (train.tokens, validation.first_token, validation.tokens) == (851, 851, 149)


def test_an_id_beyond_the_vocabulary_is_named_with_its_place(tmp_path: Path) -> None:
    _write(tmp_path / "a.bin", [1, 2, 3])
    _write(tmp_path / "b.bin", [1, 99, 100, 5])
    with pytest.raises(ConfigError, match=rf"^data.corpus.vocab_size = 100: {tmp_path}/b.bin has the id 100 at 2$"):
        _shards(tmp_path)


def test_ids_of_four_bytes_are_not_taken_for_twice_as_many_of_two(tmp_path: Path) -> None:
    _write(tmp_path / "a.bin", np.arange(1000) % 100, "<u4")
    with pytest.raises(ConfigError, match=rf"^data.corpus.dtype = uint16: every second id of {tmp_path}/a.bin is 0"):
        _shards(tmp_path)
    assert sum(shard.tokens for shard in _shards(tmp_path, dtype="uint32")) == 1000


def test_a_size_of_half_an_id_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\x00" * 6)
    with pytest.raises(ConfigError, match=rf"^data.corpus.dtype = uint32: {tmp_path}/a.bin has 6 bytes"):
        _shards(tmp_path, dtype="uint32")


def test_an_empty_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"")
    _write(tmp_path / "b.bin", [1, 2])
    _write(tmp_path / "c.bin", [1, 2])
    assert all(shard.tokens == 2 for shard in _shards(tmp_path))


def _config(tokenizer: dict[str, Any] | None = None, **corpus: Any) -> DataConfig:
    return DataConfig.model_validate({"corpus": corpus, "tokenizer": tokenizer or {"kind": "bytes"}})


def _refused(config: DataConfig, model_vocab_size: int | None = None) -> str:
    with pytest.raises(ConfigError) as refusal:
        check_data_config(config, model_vocab_size)
    return str(refusal.value)


def test_the_default_is_fine_and_cheap() -> None:
    check_data_config(DataConfig(), 4096)
    took = []
    for _ in range(5):
        began = time.thread_time()
        check_data_config(DataConfig(), 4096)
        took.append(time.thread_time() - began)
    assert min(took) < 0.05


def test_an_empty_prefix_is_found(bucket: str) -> None:
    assert "no files match" in _refused(_config(kind="files", path=f"s3://{bucket}/in"))
    boto3.client("s3").put_object(Bucket=bucket, Key="in/a.txt", Body=b"x")
    check_data_config(_config(kind="files", path=f"s3://{bucket}/in"))


NOWHERE = {"kind": "file", "path": "/nowhere/t.json"}


@pytest.mark.parametrize(
    ("tokenizer", "corpus", "reason"),
    [
        (None, {"kind": "files", "path": "{here}/none"}, "data.corpus.path = {here}/none: does not exist"),
        (None, {"kind": "files"}, "data.corpus.path = {here}: no files"),
        (None, {"kind": "shards", "vocab_size": 9}, "data.corpus.path = {here}: no files"),
        (None, {"kind": "hf"}, "data.corpus.path = {here}: no files"),
        (
            NOWHERE,
            {"kind": "stdlib"},
            "data.tokenizer.path = /nowhere/t.json: cannot read it: No such file",
        ),
    ],
)
def test_what_is_missing_is_found(
    tokenizer: dict[str, Any] | None, corpus: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    place = {} if corpus["kind"] == "stdlib" else {"path": str(corpus.get("path", "{here}")).format(here=tmp_path)}
    assert _refused(_config(tokenizer, **corpus | place)).startswith(reason.format(here=tmp_path))
    check_data_config(_config(tokenizer, kind="synthetic"))  # which needs nothing


def test_a_missing_extra_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert _refused(_config(kind="hf", path=str(tmp_path))).startswith("data.corpus.kind = hf: needs the extra")


def test_a_tokenizer_larger_than_the_model_is_found(tmp_path: Path) -> None:
    vocabulary = {"</s>": 0, "a": 1, "b": 2}
    (tmp_path / "t.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocabulary, "merges": []}}))
    config = _config({"kind": "file", "path": f"{tmp_path}/t.json"}, kind="stdlib")
    check_data_config(config)
    check_data_config(config, 3)
    assert _refused(config, 2) == "model.vocab_size = 2: must be at least the tokenizer's vocabulary, 3"


def test_the_room_imports_neither_torch_nor_what_is_slow() -> None:
    program = (
        "import sys; sys.path.insert(0, 'platform')\n"
        "import pkgutil, importlib, convoy.data\n"
        "for m in pkgutil.iter_modules(convoy.data.__path__): importlib.import_module('convoy.data.' + m.name)\n"
        "print([m for m in ('torch', 'tokenizers', 'datasets', 's3fs', 'boto3', 'metaflow') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
