"""Tokenizers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from convoy.config.data import BpeTokenizer, FileTokenizer
from convoy.config.errors import ConfigError
from convoy.data.tokenizer import (
    END_OF_DOCUMENT,
    MAX_WORD,
    BytesTokenizer,
    TextTokenizer,
    _cut_long_words,
    byte_characters,
    load_tokenizer,
    read_tokenizer_json,
    sample_evenly,
    token_bytes,
    train_bpe,
)
from tests.campaign import examples

pytestmark = pytest.mark.campaign

TEXTS = ["def main(argument):\n    return argument + 1\n", "größer als π — 😀\n", "class Test:\n    pass\n"] * 5
UTF_8 = st.text(st.characters(exclude_categories=("Cs",)), max_size=200)


@pytest.fixture(scope="module")
def bpe() -> TextTokenizer:
    return train_bpe(BpeTokenizer(vocab_size=300), iter(TEXTS))


TOKENIZERS = {"bpe": train_bpe(BpeTokenizer(vocab_size=300), iter(TEXTS)), "bytes": BytesTokenizer()}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=UTF_8)
@examples(150)
def test_token_bytes_of_any_text_add_up_to_its_utf_8(name: str, text: str) -> None:
    tokenizer: TextTokenizer = TOKENIZERS[name]
    (ids,) = tokenizer.encode_batch([text])
    counts = tokenizer.token_bytes()
    assert counts is not None
    assert counts.shape == (tokenizer.vocab_size,)
    assert int(counts[ids].sum()) == len(text.encode())


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=UTF_8)
@examples(150)
def test_decoding_gives_back_any_text(name: str, text: str) -> None:
    tokenizer: TextTokenizer = TOKENIZERS[name]
    (ids,) = tokenizer.encode_batch([text])
    assert tokenizer.decode([*ids.tolist(), tokenizer.eos_id]) == text


@pytest.mark.parametrize("name", TOKENIZERS)
def test_no_text_encodes_to_the_end_of_a_document(name: str) -> None:
    tokenizer: TextTokenizer = TOKENIZERS[name]
    text = f"a {END_OF_DOCUMENT} b"
    (ids,) = tokenizer.encode_batch([text])
    assert tokenizer.eos_id not in ids
    assert tokenizer.decode(ids.tolist()) == text
    counts = tokenizer.token_bytes()
    assert counts is not None
    assert counts[tokenizer.eos_id] == 0
    assert (counts[np.arange(tokenizer.vocab_size) != tokenizer.eos_id] > 0).all()


def test_the_vocabulary_is_of_the_size_asked_for_end_included(bpe: TextTokenizer) -> None:
    assert bpe.vocab_size == 300
    assert 0 <= bpe.eos_id < 300
    assert 257 < train_bpe(BpeTokenizer(vocab_size=4096), iter(["ab ab"])).vocab_size < 300  # of too few texts


def test_training_is_deterministic_over_processes(bpe: TextTokenizer) -> None:
    program = (
        "import sys; sys.path.insert(0, 'platform')\n"
        "from convoy.config.data import BpeTokenizer\nfrom convoy.data.tokenizer import train_bpe\n"
        f"sys.stdout.buffer.write(train_bpe(BpeTokenizer(vocab_size=300), iter({TEXTS!r})).json().encode())"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, check=True)
    assert done.stdout.decode() == bpe.json()


@pytest.mark.parametrize("word", ["ab" * 200_000, "".join(map(chr, range(0x4E00, 0x9000))) * 10], ids=["ab", "hanzi"])
def test_a_word_of_any_length_can_be_trained_on_and_encoded(word: str) -> None:
    tokenizer = train_bpe(BpeTokenizer(vocab_size=300), iter([*TEXTS, word]))
    (ids,) = tokenizer.encode_batch([word])
    assert tokenizer.decode(ids.tolist()) == word


@given(st.lists(st.tuples(st.sampled_from(["a", "é", "7", " ", "\n", "-", "a b", "it's "]), st.integers(1, 3000))))
@examples(60)
def test_only_words_beyond_the_limit_are_cut_for_the_training(runs: list[tuple[str, int]]) -> None:
    text, step = "".join(part * count for part, count in runs), pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = [end - start for _, (start, end) in step.pre_tokenize_str(text)]
    pieces = list(_cut_long_words(text, step))
    assert "".join(pieces) == text
    assert len(pieces) == 1 + sum((word - 1) // MAX_WORD for word in words)
    cut = [end - start for piece in pieces for _, (start, end) in step.pre_tokenize_str(piece)]
    assert max(cut, default=0) <= MAX_WORD


def test_a_saved_tokenizer_encodes_as_before(bpe: TextTokenizer) -> None:
    loaded = load_tokenizer(bpe.json(), END_OF_DOCUMENT, "x")
    assert (loaded.vocab_size, loaded.eos_id) == (bpe.vocab_size, bpe.eos_id)
    for before, after in zip(bpe.encode_batch(TEXTS), loaded.encode_batch(TEXTS), strict=True):
        assert np.array_equal(before, after)


@given(text=UTF_8)
@examples(80)
def test_the_tokenizer_json_of_raw_bytes_gives_raw_bytes(text: str) -> None:
    loaded = load_tokenizer(BytesTokenizer().json(), END_OF_DOCUMENT, "x")
    assert (loaded.vocab_size, loaded.eos_id) == (257, 256)
    assert loaded.encode_batch([text])[0].tolist() == list(text.encode())
    assert np.array_equal(np.asarray(loaded.token_bytes()), BytesTokenizer().token_bytes())


def test_the_table_of_byte_characters_is_that_of_the_library() -> None:
    characters = byte_characters()
    assert set(characters) == set(pre_tokenizers.ByteLevel.alphabet())
    step = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in ["\n", " ", "a", "é", "\x00", "\x7f", "\xad"]:
        assert step.pre_tokenize_str(text)[0][0] == "".join(characters[byte] for byte in text.encode())


def test_forks_after_encoding_neither_warn_nor_hang() -> None:
    program = (
        "import os, sys; sys.path.insert(0, 'platform')\n"
        "from convoy.config.data import BpeTokenizer\nfrom convoy.data.tokenizer import train_bpe\n"
        f"tokenizer = train_bpe(BpeTokenizer(vocab_size=300), iter({TEXTS!r}))\n"
        f"tokenizer.encode_batch({TEXTS!r})\n"
        "child = os.fork()\n"
        f"n = len(tokenizer.encode_batch({TEXTS!r}))\n"
        "if child == 0: os._exit(n)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) - n)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, env=environment, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


@given(st.lists(UTF_8, max_size=40), st.integers(1, 2000))
@examples(150)
def test_an_even_sample_never_exceeds_its_limit(texts: list[str], at_most: int) -> None:
    total = sum(len(text.encode()) for text in texts)
    sample = list(sample_evenly(iter(texts), total, at_most))
    assert sum(len(text.encode()) for text in sample) <= at_most
    if total <= at_most:
        assert "".join(sample) == "".join(texts)


def test_an_even_sample_is_spread_over_all_texts() -> None:
    texts = [f"{i:04d}" * 25 for i in range(1000)]
    taken = [int(text[:4]) for text in sample_evenly(iter(texts), 100_000, 10_000)]
    assert len(taken) == 100
    assert all(len([i for i in taken if start <= i < start + 100]) == 10 for start in range(0, 1000, 100))


def _saved(folder: Path, tokenizer: Tokenizer) -> FileTokenizer:
    tokenizer.save(str(folder / "tokenizer.json"))
    return FileTokenizer(kind="file", path=str(folder / "tokenizer.json"))


def _words(*special: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"hello": 0, "world": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    return tokenizer


def test_the_end_of_a_document_is_the_first_known_token_and_the_vocabulary_counts_added_ones(tmp_path: Path) -> None:
    facts = read_tokenizer_json(_saved(tmp_path, _words("<|end_of_text|>", "</s>")))
    assert (facts.eos_token, facts.vocab_size) == ("</s>", 5)
    unigram = Tokenizer(models.Unigram([("</s>", 0.0), ("a", -1.0), ("b", -2.0)], unk_id=0))
    assert read_tokenizer_json(_saved(tmp_path, unigram)).vocab_size == 3
    with pytest.raises(ConfigError, match=r"^data.tokenizer.eos_token: name the token that ends a document; "):
        read_tokenizer_json(_saved(tmp_path, _words()))


def test_the_end_of_a_document_can_be_named(tmp_path: Path) -> None:
    config = _saved(tmp_path, _words("</s>", "<end>"))
    facts = read_tokenizer_json(config.model_copy(update={"eos_token": "<end>"}))
    assert load_tokenizer(facts.text, facts.eos_token, config.path).eos_id == 4
    with pytest.raises(ConfigError, match=r"^data.tokenizer.eos_token = <no>: not in the vocabulary of "):
        read_tokenizer_json(config.model_copy(update={"eos_token": "<no>"}))


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"model": {"vocab": {}}}', '{"model": 3}'])
def test_what_is_no_tokenizer_json_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(ConfigError, match=rf"^data.tokenizer.path = {tmp_path}/t.json: not a tokenizer.json"):
        read_tokenizer_json(FileTokenizer(kind="file", path=f"{tmp_path}/t.json"))


def test_what_the_library_cannot_load_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^data.tokenizer.path = t.json: not a tokenizer.json: "):
        load_tokenizer('{"model": {"vocab": {"a": 0}}}', "a", "t.json")


def test_bytes_are_unknown_where_text_can_be_lost_or_changed(bpe: TextTokenizer) -> None:
    assert token_bytes(json.loads(_words("</s>").to_str())) is None
    base = json.loads(bpe.json())
    assert token_bytes(base) is not None
    changed = Tokenizer.from_str(bpe.json())
    changed.normalizer = normalizers.NFC()
    assert token_bytes(json.loads(changed.to_str())) is None
    changed = Tokenizer.from_str(bpe.json())
    changed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert token_bytes(json.loads(changed.to_str())) is None
    changed.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("a", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    assert token_bytes(json.loads(changed.to_str())) is None
    without_a_byte = json.loads(bpe.json())
    del without_a_byte["model"]["vocab"]["a"]
    assert token_bytes(without_a_byte) is None


def test_bytes_are_known_for_a_split_before_the_byte_level(bpe: TextTokenizer) -> None:
    changed = Tokenizer.from_str(bpe.json())
    changed.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    changed.add_tokens([AddedToken("größer", normalized=False)])
    tokenizer = TextTokenizer(changed, END_OF_DOCUMENT)
    counts = tokenizer.token_bytes()
    assert counts is not None
    (ids,) = tokenizer.encode_batch(["a größer b"])
    assert tokenizer.vocab_size - 1 in ids
    assert int(counts[ids].sum()) == len("a größer b".encode())
