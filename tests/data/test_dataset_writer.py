"""Writing datasets, alone and at once."""

import threading
from pathlib import Path

import numpy as np
import pytest

from convoy.data.dataset_writer import DatasetWriter, Vocabulary, id_dtype
from convoy.data.manifest import PreparedData, read_manifest
from convoy.data.sequences import TokenSequences
from convoy.storage import open_store

VOCABULARY = Vocabulary(300, 256, "<|endoftext|>", "uint16")


def _write(root: Path, value: int, tokens: int = 100) -> PreparedData:
    with DatasetWriter(open_store(str(root)), "id", VOCABULARY) as writer:
        writer.add_tokens("train", np.full(tokens, value))
        writer.add_tokens("validation", np.full(tokens, value))
        return writer.publish()


def test_tokens_go_to_shards_of_bounded_size_and_none_is_lost(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with DatasetWriter(store, "id", VOCABULARY, shard_bytes=200) as writer:
        for start in range(0, 290, 29):
            writer.add_tokens("train", np.arange(start, start + 29))
        manifest = writer.publish()
    assert [shard.tokens for shard in manifest.shards] == [100, 100, 90]
    assert [file.size for file in manifest.files] == [200, 200, 180]
    assert [shard.path for shard in manifest.shards] == [f"train-{i:05d}.bin" for i in range(3)]
    sequences = TokenSequences(manifest, tmp_path / manifest.prefix, "train", 289)
    assert np.array_equal(sequences.window(0), np.arange(290))


def test_documents_end_with_their_end_and_are_counted(tmp_path: Path) -> None:
    with DatasetWriter(open_store(str(tmp_path)), "id", VOCABULARY) as writer:
        writer.add_document("train", np.array([1, 2]), text_bytes=5)
        writer.add_document("train", np.array([3]), text_bytes=1)
        writer.add_document("validation", np.array([4]), text_bytes=2)
        manifest = writer.publish()
    ids = np.fromfile(tmp_path / manifest.prefix / "train-00000.bin", dtype="<u2")
    assert ids.tolist() == [1, 2, 256, 3, 256]
    assert manifest.documents == {"train": 2, "validation": 1}
    assert manifest.text_bytes == {"train": 6, "validation": 2}


def test_nothing_is_visible_before_publication_and_nothing_stays_after_failure(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))

    def fail_halfway() -> None:
        with DatasetWriter(store, "id", VOCABULARY) as writer:
            writer.add_file("tokenizer.json", b"{}")
            assert read_manifest(store, "id") is None
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    assert store.sizes("_data/") == {}


def test_the_second_of_two_attempts_takes_the_dataset_of_the_first(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with DatasetWriter(store, "id", VOCABULARY) as slow:
        slow.add_file("train.bin", b"slow")
        fast = _write(tmp_path, 1)
        slow.add_file("late.bin", b"slow")
        assert slow.publish() == fast
    names = set(store.sizes("_data/"))
    assert names == {"_data/id/manifest.json", *(fast.prefix + file.name for file in fast.files)}
    assert read_manifest(store, "id") == fast


def test_many_attempts_at_once_end_with_one_whole_dataset(tmp_path: Path) -> None:
    barrier = threading.Barrier(6)
    found: list[PreparedData] = []

    def attempt(value: int) -> None:
        barrier.wait()
        found.append(_write(tmp_path, value, tokens=2000))

    threads = [threading.Thread(target=attempt, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len({manifest.attempt for manifest in found}) == 1
    train = np.fromfile(tmp_path / found[0].prefix / "train-00000.bin", dtype="<u2")
    validation = np.fromfile(tmp_path / found[0].prefix / "validation-00000.bin", dtype="<u2")
    assert np.array_equal(train, validation)
    assert len(set(train.tolist())) == 1


def test_what_a_killed_attempt_left_is_deleted_by_the_next(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.write("_data/id/killed/train-00000.bin", b"x" * 100)
    _write(tmp_path, 1)
    assert not any("killed" in name for name in store.sizes("_data/"))


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_dataset_whose_shards_are_cut_or_gone_is_made_again(is_cut: bool, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    old = _write(tmp_path, 1)
    assert read_manifest(store, "id") == old
    shard = tmp_path / old.prefix / "train-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2]) if is_cut else shard.unlink()
    assert read_manifest(store, "id") is None
    new = _write(tmp_path, 1)
    assert new.attempt != old.attempt
    assert read_manifest(store, "id") == new


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2, "uint16"), (2**16, "uint16"), (2**16 + 1, "uint32")])
def test_ids_take_the_smaller_type_that_holds_them(vocab_size: int, dtype: str) -> None:
    assert id_dtype(vocab_size) == dtype
    assert np.iinfo(dtype).max >= vocab_size - 1
