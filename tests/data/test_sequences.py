"""Fixed-length sequences."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.data.manifest import PreparedData, Shard, Split
from convoy.data.sequences import IGNORED, TokenSequences, validation_samples
from tests.campaign import examples

pytestmark = pytest.mark.campaign

EOS = 0


def _manifest(shards: list[Shard], dtype: str = "uint16", eos_id: int | None = EOS) -> PreparedData:
    return PreparedData.model_validate(
        {
            "format": 1,
            "id": "x",
            "attempt": "y",
            "dtype": dtype,
            "vocab_size": 60_000,
            "eos_id": eos_id,
            "eos_token": None,
            "shards": shards,
            "files": (),
            "documents": {},
            "text_bytes": {},
            "skipped_files": 0,
        }
    )


def _sequences(
    folder: Path, parts: list[np.ndarray], length: int, respect_documents: bool = False, dtype: str = "uint16"
) -> TokenSequences:
    shards = []
    for i, part in enumerate(parts):
        part.astype(np.dtype(dtype).newbyteorder("<")).tofile(folder / f"{i}.bin")
        shards.append(Shard(split="train", path=f"{i}.bin", tokens=part.size))
    return TokenSequences(_manifest(shards, dtype), folder, "train", length, respect_documents)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 30), st.sampled_from(["uint16", "uint32"]))
@examples(100)
def test_windows_are_those_of_all_shards_in_one_row(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], length: int, dtype: str
) -> None:
    stream = np.random.default_rng(sum(sizes)).integers(1, 60_000, size=sum(sizes))
    parts = np.split(stream, np.cumsum(sizes)[:-1])
    sequences = _sequences(tmp_path_factory.mktemp("s"), parts, length, dtype=dtype)
    assert sequences.n_samples == max(0, (stream.size - 1) // length)
    for i in range(sequences.n_samples):
        assert np.array_equal(sequences.window(i), stream[i * length : i * length + length + 1])


def test_targets_are_the_next_tokens(tmp_path: Path) -> None:
    batch = _sequences(tmp_path, [np.arange(1, 42)], 10).batch(np.array([2, 0]))
    assert batch.tokens_bs.tolist() == [list(range(21, 31)), list(range(1, 11))]
    assert batch.targets_bs.tolist() == [list(range(22, 32)), list(range(2, 12))]
    assert batch.documents_bs is None
    assert batch.tokens_bs.dtype == batch.targets_bs.dtype == np.int64


def test_every_token_but_the_first_is_a_target_exactly_once(tmp_path: Path) -> None:
    sequences = _sequences(tmp_path, [np.arange(1, 60), np.arange(60, 102)], 10)
    targets = sequences.batch(np.arange(sequences.n_samples)).targets_bs
    assert targets.ravel().tolist() == list(range(2, 102))


def test_padding_has_no_targets(tmp_path: Path) -> None:
    batch = _sequences(tmp_path, [np.arange(1, 42)], 10, respect_documents=True).batch(np.array([-1, 1, -1]))
    for row in (0, 2):
        assert (batch.tokens_bs[row] == 0).all()
        assert (batch.targets_bs[row] == IGNORED).all()
    assert (batch.targets_bs[1] > 0).all()
    assert batch.tokens_bs.shape == batch.targets_bs.shape == (3, 10)


def test_documents_are_numbered_within_a_sequence_and_not_predicted_across(tmp_path: Path) -> None:
    stream = np.array([5, 6, EOS, 7, EOS, EOS, 8, 9, 3])
    batch = _sequences(tmp_path, [stream], 8, respect_documents=True).batch(np.array([0]))
    assert batch.documents_bs is not None
    assert batch.documents_bs.dtype == np.int32
    assert batch.documents_bs.tolist() == [[0, 0, 0, 1, 1, 2, 3, 3]]
    assert batch.targets_bs.tolist() == [[6, EOS, IGNORED, EOS, IGNORED, IGNORED, 9, 3]]


@given(st.lists(st.integers(0, 3), min_size=12, max_size=60))
@examples(80)
def test_tokens_share_a_document_number_exactly_if_no_end_lies_between(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int]
) -> None:
    sequences = _sequences(tmp_path_factory.mktemp("s"), [np.array(ids)], 11, respect_documents=True)
    batch = sequences.batch(np.array([0]))
    assert batch.documents_bs is not None
    tokens, documents = batch.tokens_bs[0], batch.documents_bs[0]
    for i in range(11):
        for j in range(i, 11):
            assert (documents[i] == documents[j]) == (EOS not in tokens[i:j])
    assert ((batch.targets_bs[0] == IGNORED) == (tokens == EOS)).all()


@pytest.mark.parametrize("how", [{"respect_documents": True}, {"packing": False}])
def test_respecting_documents_needs_their_end(how: dict[str, bool], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no end of documents"):
        TokenSequences(_manifest([], eos_id=None), tmp_path, "train", 8, **how)


def test_a_shard_can_be_a_part_of_a_file_anywhere(tmp_path: Path) -> None:
    np.arange(100, dtype="<u2").tofile(tmp_path / "all.bin")
    path = str(tmp_path / "all.bin")
    parts: list[tuple[Split, int, int]] = [("train", 0, 70), ("validation", 70, 30)]
    manifest = _manifest([Shard(split=s, path=path, first_token=f, tokens=n) for s, f, n in parts])
    held_out = TokenSequences(manifest, Path("/nowhere"), "validation", 10)
    assert held_out.n_samples == 2
    assert held_out.window(0).tolist() == list(range(70, 81))
    assert TokenSequences(manifest, Path("/nowhere"), "train", 10).n_samples == 6


@pytest.mark.parametrize("sample", [-2, 4])
def test_a_sample_that_does_not_exist_is_an_error(tmp_path: Path, sample: int) -> None:
    with pytest.raises(IndexError, match=f"sample {sample}"):
        _sequences(tmp_path, [np.arange(1, 42)], 10).batch(np.array([sample]))


@given(st.integers(1, 500), st.integers(1, 100), st.integers(1, 16), st.integers(1, 9))
@examples(200)
def test_validation_uses_the_same_samples_once_on_any_world_size(n: int, count: int, world: int, micro: int) -> None:
    passes = [validation_samples(n, count, rank, world, micro) for rank in range(world)]
    assert len({tuple(ids.size for ids in rank) for rank in passes}) == 1
    assert all(ids.size <= micro for rank in passes for ids in rank)
    used = sorted(int(i) for rank in passes for ids in rank for i in ids if i >= 0)
    assert used == sorted({i * n // min(count, n) for i in range(min(count, n))})
    assert len(used) == min(count, n)


def _padded(folder: Path, stream: np.ndarray, cuts: list[int], length: int) -> TokenSequences:
    """Shards of the stream, cut anywhere, without packing."""
    shards = []
    for i, part in enumerate(np.split(stream, cuts)):
        part.astype("<u2").tofile(folder / f"{i}.bin")
        shards.append(Shard(split="train", path=f"{i}.bin", tokens=part.size))
    return TokenSequences(_manifest(shards), folder, "train", length, packing=False)


@given(st.lists(st.integers(0, 25), min_size=1, max_size=8), st.integers(1, 12), st.booleans())
@examples(100)
def test_without_packing_each_pair_of_a_document_is_trained_once(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], length: int, ended: bool
) -> None:
    """sizes: of documents, without their ends; the last one may have none."""
    documents = [[*range(100 * i + 1, 100 * i + 1 + size), EOS] for i, size in enumerate(sizes)]
    if not ended:
        documents[-1] = documents[-1][:-1]
    stream = np.array([token for document in documents for token in document])
    cuts = sorted({int(cut) for cut in np.random.default_rng(len(stream)).integers(0, len(stream) + 1, 2)})
    sequences = _padded(tmp_path_factory.mktemp("s"), stream, cuts, length)
    batch = sequences.batch(np.arange(sequences.n_samples))
    counted = batch.targets_bs != IGNORED
    found = list(zip(batch.tokens_bs[counted].tolist(), batch.targets_bs[counted].tolist(), strict=True))
    assert found == [pair for document in documents for pair in pairwise(document)]
    assert counted[:, 0].all()  # none is of padding alone
    assert all((np.diff(row.astype(int)) <= 0).all() for row in counted)  # padding comes last
    assert batch.documents_bs is None
