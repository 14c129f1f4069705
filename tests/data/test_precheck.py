"""What is found before a run starts."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import boto3
import pytest

from convoy.config.data import DataConfig
from convoy.config.errors import ConfigError
from convoy.data.prepare import precheck


def _config(tokenizer: dict[str, Any] | None = None, **corpus: Any) -> DataConfig:
    return DataConfig.model_validate({"corpus": corpus, "tokenizer": tokenizer or {"kind": "bytes"}})


def _refused(config: DataConfig, model_vocab_size: int | None = None) -> str:
    with pytest.raises(ConfigError) as refusal:
        precheck(config, model_vocab_size)
    return str(refusal.value)


def test_the_default_is_fine_and_cheap() -> None:
    precheck(DataConfig(), 4096)
    took = []
    for _ in range(5):
        began = time.thread_time()
        precheck(DataConfig(), 4096)
        took.append(time.thread_time() - began)
    assert min(took) < 0.05


def test_a_missing_folder_is_found(tmp_path: Path) -> None:
    assert _refused(_config(kind="files", path=f"{tmp_path}/none")).endswith("does not exist")


def test_an_empty_folder_is_found(tmp_path: Path) -> None:
    for corpus in ({"kind": "files"}, {"kind": "shards", "vocab_size": 9}, {"kind": "hf"}):
        assert _refused(_config(**corpus, path=str(tmp_path))).startswith(f"data.corpus.path = {tmp_path}: no files")


def test_an_empty_prefix_is_found(bucket: str) -> None:
    assert "no files match" in _refused(_config(kind="files", path=f"s3://{bucket}/in"))
    boto3.client("s3").put_object(Bucket=bucket, Key="in/a.txt", Body=b"x")
    precheck(_config(kind="files", path=f"s3://{bucket}/in"))


def test_synthetic_tokens_need_nothing() -> None:
    precheck(_config({"kind": "file", "path": "/nowhere"}, kind="synthetic"))


def test_a_missing_tokenizer_is_found(tmp_path: Path) -> None:
    line = _refused(_config({"kind": "file", "path": f"{tmp_path}/t.json"}, kind="stdlib"))
    assert line == f"data.tokenizer.path = {tmp_path}/t.json: cannot read it: No such file or directory"


def test_a_tokenizer_larger_than_the_model_is_found(tmp_path: Path) -> None:
    vocabulary = {"</s>": 0, "a": 1, "b": 2}
    (tmp_path / "t.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocabulary, "merges": []}}))
    config = _config({"kind": "file", "path": f"{tmp_path}/t.json"}, kind="stdlib")
    precheck(config)
    precheck(config, 3)
    assert _refused(config, 2) == "model.vocab_size = 2: must be at least the tokenizer's vocabulary, 3"


def test_a_missing_extra_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert _refused(_config(kind="hf", path=str(tmp_path))).startswith("data.corpus.kind = hf: needs the extra")


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
