"""What prepared data consists of: the manifest that makes a dataset exist."""

import hashlib
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from convoy.config.data import DataConfig
from convoy.config.errors import ConfigError
from convoy.config.json_text import canonical_json
from convoy.storage import ObjectMissing, Store
from convoy.storage.base import Component, is_component

FORMAT = 1
"""Of the shards and of this manifest; a part of every dataset's id."""

DATA_PREFIX = "_data"
TOKENIZER_FILE = "tokenizer.json"
TOKEN_BYTES_FILE = "token_bytes.npy"

Split = Literal["train", "validation"]


class DataDamaged(RuntimeError):
    """A file of the dataset is missing, or is not what the manifest says; the text is the one line to show."""


def _check_shard_path(path: str) -> str:
    if not is_component(path) and (not PurePosixPath(path).is_absolute() or "\0" in path):
        raise ValueError(f"{path!r} is neither the name of one file nor an absolute path")
    return path


class Shard(BaseModel):
    """A run of tokens in one file: raw little-endian ids, no header."""

    model_config = ConfigDict(frozen=True)

    split: Split
    path: Annotated[str, AfterValidator(_check_shard_path)]
    """A file of the dataset, or the absolute path of a ready-made one."""
    first_token: int = 0
    """Where in the file it begins."""
    tokens: int


class DataFile(BaseModel):
    """A file that belongs to the dataset."""

    model_config = ConfigDict(frozen=True)

    name: Component
    size: int
    """Bytes."""
    digest: str
    """BLAKE2b-128, hexadecimal."""


class PreparedData(BaseModel):
    """A tokenised corpus. Written last, so that what it names is complete."""

    model_config = ConfigDict(frozen=True)

    format: int
    id: Component
    """Hash of the corpus's content, the tokenizer's config and the split."""
    attempt: Component
    """Which of several concurrent preparers made the files."""
    dtype: Literal["uint16", "uint32"]
    vocab_size: int
    """Every id is below this."""
    eos_id: int | None
    """Ends a document; None where nothing does."""
    eos_token: str | None
    """Its name in the tokenizer; None where there is no tokenizer."""
    shards: tuple[Shard, ...]
    files: tuple[DataFile, ...]
    """Shards made here, and with a tokenizer `tokenizer.json` and perhaps `token_bytes.npy`."""
    documents: dict[Split, int]
    text_bytes: dict[Split, int]
    """UTF-8 bytes of the documents; 0 where tokens have no text."""
    skipped_files: int
    """Not UTF-8, so left out."""

    def tokens(self, split: Split) -> int:
        """Tokens of the split, ends of documents included."""
        return sum(shard.tokens for shard in self.shards if shard.split == split)

    @property
    def prefix(self) -> str:
        """Where its files lie in the store, with a `/` at the end."""
        return f"{DATA_PREFIX}/{self.id}/{self.attempt}/"


def manifest_name(data_id: str) -> str:
    """Name of the manifest in the store."""
    return f"{DATA_PREFIX}/{data_id}/manifest.json"


def read_manifest(store: Store, data_id: str) -> PreparedData | None:
    """The dataset of that id if it is there whole; None if it is not, or if files of it are gone."""
    if not is_component(data_id):
        return None
    try:
        manifest = PreparedData.model_validate_json(store.read(manifest_name(data_id)))
    except (ObjectMissing, ValidationError):
        return None
    if manifest.id != data_id:
        return None
    present = store.sizes(manifest.prefix)
    whole = all(present.get(manifest.prefix + file.name) == file.size for file in manifest.files)
    return manifest if whole else None


def data_fingerprint(manifest: PreparedData, config: DataConfig) -> str:
    """What a job may never change about its data: tokens, tokenizer, sequence length, packing. 16 hex digits."""
    facts: dict[str, Any] = {
        "id": manifest.id,
        # Two versions of the tokenizers library may make two datasets of one id: the files distinguish them.
        "files": [[file.name, file.digest] for file in manifest.files],
        "shards": [[shard.split, shard.first_token, shard.tokens] for shard in manifest.shards],
        "sequence_length": config.sequence_length,
        "respect_documents": config.respect_documents,
    }
    if not config.packing:  # named only then: data of jobs that were packed keep the fingerprint that they have
        facts["packing"] = False
    return json_digest(facts)


def check_vocabulary(vocab_size: int, model_vocab_size: int) -> None:
    """Raise ConfigError if data with so many ids holds some that the model does not know."""
    if vocab_size > model_vocab_size:
        raise ConfigError(
            f"model.vocab_size = {model_vocab_size}: must be at least the tokenizer's vocabulary, {vocab_size}"
        )


def refuse_short_splits(manifest: PreparedData, sequence_length: int) -> None:
    """Raise ConfigError unless each split holds at least one sequence."""
    splits: tuple[Split, ...] = ("train", "validation")
    for split in splits:
        tokens = manifest.tokens(split)
        if tokens <= sequence_length:
            raise ConfigError(
                f"data.sequence_length = {sequence_length}: must be less than the tokens of the {split} split, {tokens}"
            )


def json_digest(value: Any) -> str:
    """16 hex digits of a value's canonical JSON."""
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=8).hexdigest()
