"""What a `tokenizer.json` says, read without the `tokenizers` library."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from convoy.config.data import FileTokenizer
from convoy.config.errors import ConfigError
from convoy.config.json_text import parse_json

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
        ids = _ids(parse_json(text))
    except OSError as error:
        raise ConfigError(f"data.tokenizer.path = {config.path}: cannot read it: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        ids = {}
    if not ids:
        raise ConfigError(f"data.tokenizer.path = {config.path}: not a tokenizer.json of the tokenizers library")
    return TokenizerJson(text, 1 + max(ids.values()), _end_token(config, ids))


def token_bytes(parsed: Any) -> npt.NDArray[np.uint32] | None:
    """[vocabulary] UTF-8 bytes of each id of a parsed byte-level tokenizer; None where text can be lost or changed.

    Special tokens count 0. The sum over the ids of a text is the length of its UTF-8.
    """
    if not _keeps_every_byte(parsed):
        return None
    ids = _ids(parsed)
    counts = np.zeros(1 + max(ids.values()), dtype=np.uint32)
    for token, i in parsed["model"]["vocab"].items():
        counts[i] = len(token)  # one character of the byte alphabet is one byte
    for token in parsed.get("added_tokens") or ():
        counts[token["id"]] = 0 if token["special"] else len(token["content"].encode())
    return counts


def byte_characters() -> list[str]:
    """The character that stands for each byte 0 to 255 in byte-level vocabularies (GPT-2's table).

    Printable bytes of Latin-1 stand for themselves; the others take the code points from 256 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _ids(parsed: Any) -> dict[str, int]:
    vocabulary = parsed["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram: pairs of token and score, the id is the place
        vocabulary = {token: i for i, (token, _) in enumerate(vocabulary)}
    return dict(vocabulary) | {token["content"]: int(token["id"]) for token in parsed.get("added_tokens") or ()}


def _end_token(config: FileTokenizer, ids: dict[str, int]) -> str:
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


def _keeps_every_byte(parsed: Any) -> bool:
    model = parsed["model"]
    return (
        model.get("type") == "BPE"
        and not any(model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
        and not parsed.get("normalizer")
        and _has_byte_level(parsed.get("pre_tokenizer"))
        and all(character in model["vocab"] for character in byte_characters())
        # Around such tokens white space disappears.
        and not any(t["lstrip"] or t["rstrip"] for t in parsed.get("added_tokens") or () if not t["special"])
    )


def _has_byte_level(pre_tokenizer: Any) -> bool:
    """Whether text goes to bytes in the end, and nothing is added or removed on the way."""
    parts = (pre_tokenizer or {}).get("pretokenizers") or [pre_tokenizer or {}]
    *before, last = parts
    return (
        last.get("type") == "ByteLevel"
        and not last.get("add_prefix_space")
        and all(p["type"] == "Digits" or (p["type"] == "Split" and p["behavior"] != "Removed") for p in before)
    )
