"""Token shards made elsewhere."""

from pathlib import Path

import numpy as np
import pytest

from convoy.config.data import ShardsCorpus
from convoy.config.errors import ConfigError
from convoy.data.manifest import Shard
from convoy.data.prepare import ready_made_shards
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
