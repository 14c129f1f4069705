"""Text to token ids and back; what a `tokenizer.json` says is read without the `tokenizers` library."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from convoy.config.data import BpeTokenizer, FileTokenizer
from convoy.config.errors import ConfigError
from convoy.config.json_text import parse_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HfTokenizer
    from tokenizers.pre_tokenizers import PreTokenizer


END_OF_DOCUMENT = "<|endoftext|>"
"""The end of a document in the tokenizers made here."""

MAX_WORD = 1000
"""Characters of a word that a BPE is trained on; the trainer takes a time that grows with the square of them."""

_BLOCK = MAX_WORD // 2
_ONE_BLOCK = re.compile(rf"\S{{{_BLOCK}}}|\s{{{_BLOCK}}}")

_PARALLELISM = "TOKENIZERS_PARALLELISM"

Ids = npt.NDArray[np.uint32]

USUAL_ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>")
"""Tokens taken as the end of a document where the config names none; the first one in the vocabulary wins."""


@dataclass(frozen=True)
class TokenizerJson:
    """A `tokenizer.json` that was checked as far as the config can be wrong about it."""

    text: str
    """The file."""
    vocab_size: int
    """Every id is below this."""
    eos_token: str
    """Ends a document."""


def read_tokenizer_json(config: FileTokenizer) -> TokenizerJson:
    """The file of `config`. Raises ConfigError if it is missing, is no tokenizer, or lacks the end of a document."""
    path = Path(config.path).expanduser()
    if path.exists() and not path.is_file():  # to open a pipe could take for ever
        raise ConfigError(f"data.tokenizer.path = {config.path}: is not a file")
    try:
        text = path.read_text(encoding="utf-8")
        ids = _vocabulary_ids(parse_json(text))
    except OSError as error:
        raise ConfigError(f"data.tokenizer.path = {config.path}: cannot read it: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        ids = {}
    if not ids:
        raise ConfigError(f"data.tokenizer.path = {config.path}: not a tokenizer.json of the tokenizers library")
    return TokenizerJson(text, 1 + max(ids.values()), _end_of_document_token(config, ids))


def token_bytes(tokenizer_tree: Any) -> npt.NDArray[np.uint32] | None:
    """[vocabulary] UTF-8 bytes of each id of a parsed byte-level tokenizer; None where text can be lost or changed.

    Special tokens count 0. The sum over the ids of a text is the length of its UTF-8.
    """
    if not _keeps_every_byte(tokenizer_tree):
        return None
    ids = _vocabulary_ids(tokenizer_tree)
    counts = np.zeros(1 + max(ids.values()), dtype=np.uint32)
    for token, i in tokenizer_tree["model"]["vocab"].items():
        counts[i] = len(token)  # one character of the byte alphabet is one byte
    for token in tokenizer_tree.get("added_tokens") or ():
        counts[token["id"]] = 0 if token["special"] else len(token["content"].encode())
    return counts


def byte_characters() -> list[str]:
    """The character that represents each byte 0 to 255 in byte-level vocabularies (GPT-2's table).

    Printable bytes of Latin-1 stand for themselves; the others take the code points from 256 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _vocabulary_ids(tokenizer_tree: Any) -> dict[str, int]:
    vocabulary = tokenizer_tree["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram: pairs of token and score, the id is the place
        vocabulary = {token: i for i, (token, _) in enumerate(vocabulary)}
    return dict(vocabulary) | {token["content"]: int(token["id"]) for token in tokenizer_tree.get("added_tokens") or ()}


def _end_of_document_token(config: FileTokenizer, ids: dict[str, int]) -> str:
    if config.eos_token is not None:
        if config.eos_token not in ids:
            raise ConfigError(f"data.tokenizer.eos_token = {config.eos_token}: not in the vocabulary of {config.path}")
        return config.eos_token
    for token in USUAL_ENDS:
        if token in ids:
            return token
    raise ConfigError(
        f"data.tokenizer.eos_token: name the token that ends a document; {config.path} has none of"
        f" {' '.join(USUAL_ENDS)}"
    )


def _keeps_every_byte(tokenizer_tree: Any) -> bool:
    model = tokenizer_tree["model"]
    return (
        model.get("type") == "BPE"
        and not any(model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
        and not tokenizer_tree.get("normalizer")
        and _is_lossless_byte_level(tokenizer_tree.get("pre_tokenizer"))
        and all(character in model["vocab"] for character in byte_characters())
        # Around such tokens white space disappears.
        and not any(t["lstrip"] or t["rstrip"] for t in tokenizer_tree.get("added_tokens") or () if not t["special"])
    )


def _is_lossless_byte_level(pre_tokenizer: Any) -> bool:
    """Whether text goes to bytes in the end, and nothing is added or removed on the way."""
    parts = (pre_tokenizer or {}).get("pretokenizers") or [pre_tokenizer or {}]
    *before, last = parts
    return (
        last.get("type") == "ByteLevel"
        and not last.get("add_prefix_space")
        and all(p["type"] == "Digits" or (p["type"] == "Split" and p["behavior"] != "Removed") for p in before)
    )


class TextTokenizer:
    """A tokenizer of the `tokenizers` library."""

    def __init__(self, tokenizer: "HfTokenizer", eos_token: str) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # a special token's name in a text is text like any other
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.eos_id: int = vocabulary[eos_token]
        """Ends a document; `encode_batch` does not add it, and no text encodes to it."""
        self.vocab_size: int = 1 + max(vocabulary.values())
        """Every id is below this."""

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, without special tokens."""
        with _use_all_cores():
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids; special tokens have none, bytes that are not UTF-8 become U+FFFD."""
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True))

    def token_bytes(self) -> Ids | None:
        """As `token_bytes` of its JSON."""
        return token_bytes(json.loads(self.json()))

    def json(self) -> str:
        """As a `tokenizer.json` of the `tokenizers` library."""
        return str(self._tokenizer.to_str())


class BytesTokenizer(TextTokenizer):
    """Raw UTF-8 bytes: ids 0 to 255; 256 ends a document."""

    def __init__(self) -> None:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(END_OF_DOCUMENT, special=True)])
        super().__init__(tokenizer, END_OF_DOCUMENT)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Many times as fast as the library, which has each byte go through its model."""
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32) for text in texts]


def train_bpe(config: BpeTokenizer, texts: Iterator[str]) -> TextTokenizer:
    """A byte-level BPE of the texts: any text can be encoded, and the same texts give the same tokenizer.

    The vocabulary is smaller than requested where the texts hold too few distinct pairs. Words longer than MAX_WORD
    are cut for the training; encoding, whose time grows as the text does, takes them whole.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The tokenizer itself is locked while it is trained.
    pieces = (piece for text in texts for piece in _cut_long_words(text, words))
    with _use_all_cores():
        tokenizer.train_from_iterator(pieces, trainer)
    return TextTokenizer(tokenizer, END_OF_DOCUMENT)


def _cut_long_words(text: str, pre_tokenizer: "PreTokenizer") -> Iterator[str]:
    """The text in one piece, or where it has longer words in pieces whose words are at most MAX_WORD characters."""
    # A run of MAX_WORD characters fills one of the blocks of half as many. Few texts are divided into words twice.
    if not any(_ONE_BLOCK.match(text, place) for place in range(0, len(text), _BLOCK)):
        yield text
        return
    first = 0
    for _, (start, end) in pre_tokenizer.pre_tokenize_str(text):
        for cut in range(start + MAX_WORD, end, MAX_WORD):
            yield text[first:cut]
            first = cut
    yield text[first:]


def sample_evenly(texts: Iterator[str], total_bytes: int, max_bytes: int) -> Iterator[str]:
    """Texts spread evenly over the iterator, of `max_bytes` together; all of them if `total_bytes` is not more.

    A text that goes beyond the limit is cut.
    """
    share = min(1.0, max_bytes / max(total_bytes, 1))
    passed = taken = 0
    for text in texts:
        content = text.encode()
        passed += len(content)
        if taken < passed * share and taken < max_bytes:
            piece = content[: max_bytes - taken]
            taken += len(piece)
            yield text if len(piece) == len(content) else piece.decode(errors="ignore")


def load_tokenizer(text: str, eos_token: str, path: str) -> TextTokenizer:
    """The tokenizer of a `tokenizer.json`'s text; `path` is for messages. Raises ConfigError if it is none."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(f"data.tokenizer.path = {path}: not a tokenizer.json: {error}") from None
    if tokenizer.token_to_id(eos_token) is None:
        raise ConfigError(f"data.tokenizer.eos_token = {eos_token}: not in the vocabulary of {path}")
    return TextTokenizer(tokenizer, eos_token)


@contextmanager
def _use_all_cores() -> Iterator[None]:
    """Let the library use its thread pool, unless the user decided; leave it switched off.

    The pool's threads do not survive a fork. Left undecided, the library warns in every later fork; left on, a
    forked child would wait for ever for threads it does not have.
    """
    if _PARALLELISM in os.environ:
        yield
        return
    os.environ[_PARALLELISM] = "true"
    try:
        yield
    finally:
        os.environ[_PARALLELISM] = "false"
