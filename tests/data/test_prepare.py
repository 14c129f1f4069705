"""Preparing datasets."""

import json
from collections import namedtuple
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from convoy.config.data import DataConfig
from convoy.config.errors import ConfigError
from convoy.data import local_cache
from convoy.data import prepare as prepare_module
from convoy.data.local_cache import ensure_local_data, open_token_bytes, open_tokenizer
from convoy.data.manifest import TOKENIZER_FILE, PreparedData, data_fingerprint
from convoy.data.prepare import prepare_dataset, shard_bytes_estimate
from convoy.data.sequences import TokenSequences
from convoy.storage import open_store

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "runs", "away"]


def _text(seed: int, words: int = 120) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, words)) + "\n"


def _corpus(folder: Path, files: int = 12) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(files):
        (folder / f"{i:02d}.txt").write_text(_text(i))
    return folder


def _config(path: Path | str, tokenizer: dict[str, Any] | None = None, **more: Any) -> DataConfig:
    return DataConfig.model_validate(
        {
            "corpus": {"kind": "files", "path": str(path)},
            "tokenizer": tokenizer or {"kind": "bpe", "vocab_size": 300},
            "sequence_length": 16,
            "validation_fraction": 0.2,
            **more,
        }
    )


def _prepare(config: DataConfig, root: Path) -> PreparedData:
    return prepare_dataset(config, open_store(str(root)))


def _decoded(manifest: PreparedData, folder: Path, split: str) -> list[str]:
    """The documents as text again."""
    tokenizer = open_tokenizer(manifest, folder)
    assert tokenizer is not None
    shards = [s for s in manifest.shards if s.split == split]
    ids = np.concatenate([np.fromfile(folder / s.path, dtype=manifest.dtype) for s in shards])
    documents = np.split(ids, np.flatnonzero(ids == manifest.eos_id) + 1)
    return [tokenizer.decode(document.tolist()) for document in documents if document.size]


@pytest.mark.parametrize("tokenizer", [{"kind": "bpe", "vocab_size": 300}, {"kind": "bytes"}], ids=["bpe", "bytes"])
def test_the_shards_hold_every_document_once_and_whole(tmp_path: Path, tokenizer: dict[str, Any]) -> None:
    corpus = _corpus(tmp_path / "corpus")
    config = _config(corpus, tokenizer)
    manifest = _prepare(config, tmp_path / "root")
    folder = ensure_local_data(manifest, open_store(str(tmp_path / "root")), config)
    train, held_out = _decoded(manifest, folder, "train"), _decoded(manifest, folder, "validation")
    assert sorted(train + held_out) == sorted(path.read_text() for path in corpus.iterdir())
    assert manifest.documents == {"train": len(train), "validation": len(held_out)}
    assert manifest.text_bytes == {"train": sum(map(len, train)), "validation": sum(map(len, held_out))}
    assert held_out


def test_token_bytes_of_a_split_add_up_to_its_text(tmp_path: Path) -> None:
    config = _config(_corpus(tmp_path / "corpus"))
    manifest = _prepare(config, tmp_path / "root")
    folder = ensure_local_data(manifest, open_store(str(tmp_path / "root")), config)
    counts = open_token_bytes(manifest, folder)
    assert counts is not None
    ids = np.fromfile(folder / "validation-00000.bin", dtype=manifest.dtype)
    assert counts.dtype == np.uint32
    assert int(counts[ids].sum()) == manifest.text_bytes["validation"]


def test_the_tokenizer_is_trained_on_training_documents_alone(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path / "corpus")
    config = _config(corpus)
    first = _prepare(config, tmp_path / "one")
    held_out = _decoded(first, tmp_path / "one" / first.prefix, "validation")
    changed = next(path for path in corpus.iterdir() if path.read_text() == held_out[0])
    changed.write_text("zzzz qqqq " * 200)
    second = _prepare(config, tmp_path / "one")
    assert first.id != second.id
    read = [(tmp_path / "one" / m.prefix / TOKENIZER_FILE).read_bytes() for m in (first, second)]
    assert read[0] == read[1]


def test_a_second_preparation_reads_no_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(_corpus(tmp_path / "corpus"))
    manifest = _prepare(config, tmp_path / "root")

    def refuse(*_: object) -> None:
        raise AssertionError("read the content")

    monkeypatch.setattr(prepare_module, "content_digests", refuse)
    assert _prepare(config, tmp_path / "root") == manifest


def test_the_same_content_elsewhere_or_touched_is_not_tokenised_again(tmp_path: Path) -> None:
    one, other = _corpus(tmp_path / "one"), _corpus(tmp_path / "other" / "place")
    (other / "latin1.txt").write_bytes("größer".encode("latin-1"))
    (one / "latin1.txt").write_bytes("größer".encode("latin-1"))
    first = _prepare(_config(one), tmp_path / "root")
    assert _prepare(_config(other), tmp_path / "root") == first
    (one / "00.txt").touch()
    assert _prepare(_config(one), tmp_path / "root") == first
    assert first.skipped_files == 1


@pytest.mark.parametrize(
    "change",
    [{"validation_fraction": 0.5}, {"tokenizer": {"kind": "bytes"}}, {"tokenizer": {"kind": "bpe", "vocab_size": 301}}],
    ids=["split", "tokenizer", "vocabulary"],
)
def test_what_shapes_the_tokens_makes_another_dataset(tmp_path: Path, change: dict[str, Any]) -> None:
    corpus = _corpus(tmp_path / "corpus")
    before = _prepare(_config(corpus), tmp_path / "root")
    assert _prepare(_config(corpus, **change), tmp_path / "root").id != before.id


def test_a_changed_renamed_or_added_file_makes_another_dataset(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path / "corpus")
    ids = [_prepare(_config(corpus), tmp_path / "root").id]
    (corpus / "00.txt").write_text(_text(99))
    ids.append(_prepare(_config(corpus), tmp_path / "root").id)
    (corpus / "00.txt").rename(corpus / "zz.txt")
    ids.append(_prepare(_config(corpus), tmp_path / "root").id)
    (corpus / "new.txt").write_text("new")
    ids.append(_prepare(_config(corpus), tmp_path / "root").id)
    assert len(set(ids)) == 4


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = _corpus(tmp_path / "corpus")
    batches = prepare_module._document_batches

    def meanwhile(documents: Any) -> Any:
        yield from batches(documents)
        (corpus / "03.txt").write_text("changed")

    monkeypatch.setattr(prepare_module, "_document_batches", meanwhile)
    with pytest.raises(ConfigError, match=rf"^data.corpus: {corpus}/03.txt changed while it was being read$"):
        _prepare(_config(corpus), tmp_path / "root")
    assert not list((tmp_path / "root").rglob("*.bin"))


def test_no_space_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(local_cache.shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1000))
    with pytest.raises(ConfigError, match=rf"^root = {tmp_path}/root: no space for the token shards: "):
        _prepare(_config(_corpus(tmp_path / "corpus")), tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_the_estimate_of_space_is_enough(tmp_path: Path) -> None:
    for tokenizer in ({"kind": "bytes"}, {"kind": "bpe", "vocab_size": 300}):
        config = _config(_corpus(tmp_path / "corpus", files=40), tokenizer)
        manifest = _prepare(config, tmp_path / "root")
        shards = sum(file.size for file in manifest.files if file.name.endswith(".bin"))
        assert shards <= 1.02 * shard_bytes_estimate(config, sum(manifest.text_bytes.values()))


def test_files_without_text_and_splits_shorter_than_a_sequence_are_refused(tmp_path: Path) -> None:
    config = _config(_corpus(tmp_path / "corpus"), sequence_length=100_000)
    with pytest.raises(ConfigError, match=r"^data.sequence_length = 100000: must be less than the tokens of the train"):
        _prepare(config, tmp_path / "root")
    for name in "ab":
        (tmp_path / f"{name}.txt").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"^data.corpus: its 2 files hold no UTF-8 text$"):
        _prepare(_config(f"{tmp_path}/*.txt"), tmp_path / "root")


@pytest.mark.processes
def test_a_dataset_on_disk_is_prepared(tmp_path: Path) -> None:
    from datasets import Dataset

    Dataset.from_dict({"text": [_text(i) for i in range(30)]}).save_to_disk(tmp_path / "d")
    config = _config("", corpus={"kind": "hf", "path": f"{tmp_path}/d"})
    manifest = _prepare(config, tmp_path / "root")
    assert sum(manifest.documents.values()) == 30
    assert _prepare(config, tmp_path / "root") == manifest


def test_a_tokenizer_file_is_used_and_its_change_makes_another_dataset(tmp_path: Path) -> None:
    trained = _prepare(_config(_corpus(tmp_path / "corpus")), tmp_path / "root")
    saved = tmp_path / "t.json"
    saved.write_bytes((tmp_path / "root" / trained.prefix / TOKENIZER_FILE).read_bytes())
    config = _config(tmp_path / "corpus", {"kind": "file", "path": str(saved)})
    first = _prepare(config, tmp_path / "root")
    assert first.tokens("train") == trained.tokens("train")
    assert (first.vocab_size, first.eos_id) == (trained.vocab_size, trained.eos_id)
    saved.write_text(saved.read_text() + "\n")
    assert _prepare(config, tmp_path / "root").id != first.id


def test_synthetic_tokens_are_split_and_reused(tmp_path: Path) -> None:
    config = DataConfig.model_validate(
        {"corpus": {"kind": "synthetic", "tokens": 10_000, "vocab_size": 70_000}, "sequence_length": 32}
    )
    manifest = _prepare(config, tmp_path)
    assert (manifest.tokens("train"), manifest.tokens("validation")) == (9_500, 500)
    assert (manifest.dtype, manifest.eos_id, manifest.eos_token) == ("uint32", None, None)
    folder = ensure_local_data(manifest, open_store(str(tmp_path)), config)
    assert open_tokenizer(manifest, folder) is None
    assert open_token_bytes(manifest, folder) is None
    assert _prepare(config, tmp_path) == manifest


def test_a_text_that_would_end_early_is_refused(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"the": 0, "</s>": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    config = _config(_corpus(tmp_path / "corpus"), {"kind": "file", "path": str(tmp_path / "tokenizer.json")})
    assert _prepare(config, tmp_path / "root").tokens("train")
    (tmp_path / "corpus" / "html.txt").write_text("<s>the </s> fox</s>")
    with pytest.raises(ConfigError, match=r"^data\.tokenizer\.eos_token = </s>: must be a special token"):
        _prepare(config, tmp_path / "root")


def test_ready_made_shards_are_used_where_they_lie(tmp_path: Path) -> None:
    for i in range(4):
        (np.arange(1000, dtype="<u2") % 50).tofile(tmp_path / f"{i}.bin")
    corpus = {"kind": "shards", "path": str(tmp_path), "vocab_size": 50, "eos_id": 49}
    config = DataConfig.model_validate({"corpus": corpus, "sequence_length": 32})
    store = open_store(str(tmp_path / "root"))
    manifest = prepare_dataset(config, store)
    assert manifest.files == ()
    assert sum(manifest.tokens(split) for split in ("train", "validation")) == 4000
    sequences = TokenSequences(manifest, ensure_local_data(manifest, store, config), "train", 32)
    assert sequences.window(1).tolist() == [(32 + i) % 50 for i in range(33)]
    assert prepare_dataset(config, store) == manifest
    assert not list((tmp_path / "root").rglob("*.bin"))


def test_a_corpus_on_s3_is_prepared_into_s3_and_opened_from_a_cache(tmp_path: Path, bucket: str) -> None:
    client = boto3.client("s3")
    for i in range(12):
        client.put_object(Bucket=bucket, Key=f"corpus/part/{i:02d}.txt", Body=_text(i).encode())
    client.put_object(Bucket=bucket, Key="corpus/other.bin", Body=b"\xff")
    config = _config(f"s3://{bucket}/corpus", cache=str(tmp_path / "cache"))
    store = open_store(f"s3://{bucket}/root")
    manifest = prepare_dataset(config, store)
    local = _prepare(_config(_corpus(tmp_path / "corpus" / "part").parent), tmp_path / "root")
    assert [f.digest for f in manifest.files] == [f.digest for f in local.files]
    folder = ensure_local_data(manifest, store, config)
    assert folder.parent == tmp_path / "cache"
    assert TokenSequences(manifest, folder, "train", 16).n_samples > 10
    assert prepare_dataset(config, store) == manifest
    client.put_object(Bucket=bucket, Key="corpus/part/00.txt", Body=_text(77).encode())
    assert prepare_dataset(config, store).id != manifest.id


def test_json_lines_and_globs_on_s3_are_read(tmp_path: Path, bucket: str) -> None:
    body = "\n".join(json.dumps({"text": _text(i)}) for i in range(30)).encode()
    boto3.client("s3").put_object(Bucket=bucket, Key="in/a.jsonl", Body=body)
    corpora = [
        {"kind": "files", "path": f"s3://{bucket}/in/*.jsonl", "format": "jsonl"},
        {"kind": "files", "path": f"s3://{bucket}/in/a.jsonl", "format": "jsonl"},
        {"kind": "files", "path": f"s3://{bucket}/in/", "format": "jsonl"},
    ]
    found = {_prepare(_config("", corpus=corpus), tmp_path).id for corpus in corpora}
    assert len(found) == 1
    for path in (f"s3://{bucket}/none", f"s3://{bucket}/none/*.txt", "s3://no-such-bucket-here/x"):
        with pytest.raises(ConfigError, match=r"^data.corpus.path = s3://"):
            _prepare(_config(path), tmp_path)


def test_the_fingerprint_changes_with_what_a_job_may_not_change(tmp_path: Path) -> None:
    config = _config(_corpus(tmp_path / "corpus"))
    manifest = _prepare(config, tmp_path / "root")
    other = _prepare(_config(tmp_path / "corpus", validation_fraction=0.5), tmp_path / "root")
    prints = {
        data_fingerprint(manifest, config),
        data_fingerprint(manifest, config.model_copy(update={"sequence_length": 8})),
        data_fingerprint(manifest, config.model_copy(update={"respect_documents": True})),
        data_fingerprint(other, config),
    }
    assert len(prints) == 4
    assert data_fingerprint(manifest, config.model_copy(update={"cache": "/x"})) == data_fingerprint(manifest, config)
