"""From a configuration to a tokenised dataset in the store, made once and reused."""

import importlib.util
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from convoy.config.data import (
    BpeTokenizer,
    DataConfig,
    DatasetCorpus,
    FilesCorpus,
    FileTokenizer,
    ShardsCorpus,
    StdlibCorpus,
    SyntheticCorpus,
)
from convoy.config.errors import ConfigError, yaml_value
from convoy.data.dataset_writer import DatasetWriter, Vocabulary, id_dtype
from convoy.data.documents import Document, Documents, no_datasets_extra_error
from convoy.data.local_cache import check_disk_space
from convoy.data.manifest import (
    DATA_PREFIX,
    FORMAT,
    TOKEN_BYTES_FILE,
    TOKENIZER_FILE,
    PreparedData,
    Shard,
    check_vocabulary,
    json_digest,
    read_manifest,
    refuse_short_splits,
)
from convoy.data.sources import (
    SourceFile,
    content_digests,
    held_out_names,
    is_s3_path,
    iterate_files,
    list_files,
    no_files_error,
)
from convoy.data.synthetic import markov_tokens
from convoy.data.tokenizer import (
    END_OF_DOCUMENT,
    BytesTokenizer,
    TextTokenizer,
    TokenizerJson,
    load_tokenizer,
    read_tokenizer_json,
    sample_evenly,
    train_bpe,
)
from convoy.storage import ObjectMissing, Store, is_shared

_BATCH_CHARACTERS = 1 << 20

_MIN_BYTES_PER_TOKEN = 2
"""Of a BPE, for the estimate of space; English and source text have three or more."""

_CHUNK_TOKENS = 1 << 24
_ENOUGH_IDS = 256
"""That their pattern is no accident."""


def check_data_config(config: DataConfig, model_vocab_size: int | None = None) -> None:
    """Raise ConfigError for a missing extra, path or tokenizer, no match, or a tokenizer the model is too small for."""
    corpus = config.corpus
    if isinstance(corpus, DatasetCorpus) and importlib.util.find_spec("datasets") is None:
        raise no_datasets_extra_error()
    if not isinstance(corpus, SyntheticCorpus) and next(iterate_files(corpus), None) is None:
        raise no_files_error(corpus)
    tokenizer = _read_file_tokenizer(config)
    if tokenizer is not None and model_vocab_size is not None:
        check_vocabulary(tokenizer.vocab_size, model_vocab_size)


def prepare_dataset(config: DataConfig, store: Store) -> PreparedData:
    """The dataset of `config`, tokenised now unless the store has it.

    Its id is a hash of the files' content and of everything that shapes the tokens. An index by the files' sizes and
    times finds the id again without reading them. Raises ConfigError for input that cannot be used, StoreUnavailable.
    """
    files = list_files(config.corpus)
    file_tokenizer = _read_file_tokenizer(config)
    stamps = [[file.location, file.size, file.stamp] for file in files]
    index = f"{DATA_PREFIX}/by-stat/{json_digest([_dataset_recipe(config, file_tokenizer), stamps])}"
    manifest = _read_indexed_manifest(store, index)
    if manifest is None:
        data_id = _dataset_id(config, files, file_tokenizer)
        manifest = read_manifest(store, data_id) or _build_dataset(config, files, file_tokenizer, store, data_id)
        store.write(index, manifest.id.encode())
    refuse_short_splits(manifest, config.sequence_length)
    return manifest


def _read_file_tokenizer(config: DataConfig) -> TokenizerJson | None:
    if isinstance(config.corpus, ShardsCorpus | SyntheticCorpus) or not isinstance(config.tokenizer, FileTokenizer):
        return None
    return read_tokenizer_json(config.tokenizer)


def _read_indexed_manifest(store: Store, index: str) -> PreparedData | None:
    try:
        return read_manifest(store, store.read(index).decode(errors="replace"))
    except ObjectMissing:
        return None


def _dataset_id(config: DataConfig, files: list[SourceFile], tokenizer: TokenizerJson | None) -> str:
    remote = is_s3_path(getattr(config.corpus, "path", ""))
    digests = content_digests(files, remote)
    names = [file.location if isinstance(config.corpus, ShardsCorpus) else file.name for file in files]
    contents = [[name, digest] for name, digest in zip(names, digests, strict=True)]
    return json_digest([_dataset_recipe(config, tokenizer), contents])


def _dataset_recipe(config: DataConfig, tokenizer: TokenizerJson | None) -> dict[str, Any]:
    """All that shapes the tokens but the files' content; paths do not."""
    recipe: dict[str, Any] = {
        "format": FORMAT,
        "corpus": config.corpus.model_dump(mode="json", exclude={"path", "suffixes"}),
        "validation_fraction": config.validation_fraction,
    }
    if tokenizer is not None:
        recipe["tokenizer"] = [tokenizer.text, tokenizer.eos_token]
    elif not isinstance(config.corpus, ShardsCorpus | SyntheticCorpus):
        recipe["tokenizer"] = config.tokenizer.model_dump(mode="json")
    return recipe


def _build_dataset(
    config: DataConfig, files: list[SourceFile], tokenizer: TokenizerJson | None, store: Store, data_id: str
) -> PreparedData:
    corpus = config.corpus
    if not is_shared(store.uri):
        check_disk_space("root", Path(store.uri), shard_bytes_estimate(config, sum(file.size for file in files)))
    if isinstance(corpus, SyntheticCorpus):
        return _build_synthetic(config, corpus, store, data_id)
    if isinstance(corpus, ShardsCorpus):
        vocabulary = Vocabulary(corpus.vocab_size, corpus.eos_id, None, corpus.dtype)
        with DatasetWriter(store, data_id, vocabulary) as writer:
            for shard in ready_made_shards(corpus, files, config.validation_fraction):
                writer.add_ready_made_shard(shard)
            _refuse_changed_files(config, files)
            return writer.publish()
    return _build_text(config, corpus, files, tokenizer, store, data_id)


def _build_synthetic(config: DataConfig, corpus: SyntheticCorpus, store: Store, data_id: str) -> PreparedData:
    held_out = max(1, round(corpus.tokens * config.validation_fraction))
    vocabulary = Vocabulary(corpus.vocab_size, None, None, id_dtype(corpus.vocab_size))
    with DatasetWriter(store, data_id, vocabulary) as writer:
        for block in markov_tokens(corpus.tokens - held_out, corpus.vocab_size, corpus.seed, stream=0):
            writer.add_tokens("train", block)
        for block in markov_tokens(held_out, corpus.vocab_size, corpus.seed, stream=1):
            writer.add_tokens("validation", block)
        return writer.publish()


def _build_text(
    config: DataConfig,
    corpus: StdlibCorpus | FilesCorpus | DatasetCorpus,
    files: list[SourceFile],
    tokenizer_json: TokenizerJson | None,
    store: Store,
    data_id: str,
) -> PreparedData:
    documents = Documents(corpus, files, config.validation_fraction)
    tokenizer = _make_tokenizer(config, tokenizer_json, documents)
    eos_token = tokenizer_json.eos_token if tokenizer_json else END_OF_DOCUMENT
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.eos_id, eos_token, id_dtype(tokenizer.vocab_size))
    with DatasetWriter(store, data_id, vocabulary) as writer:
        writer.add_file(TOKENIZER_FILE, tokenizer.json().encode())
        counts = tokenizer.token_bytes()
        if counts is not None:
            writer.add_file(TOKEN_BYTES_FILE, _npy_bytes(counts))
        for batch in _document_batches(documents):
            encoded = tokenizer.encode_batch([document.text for document in batch])
            for document, ids in zip(batch, encoded, strict=True):
                if tokenizer.eos_id in ids:
                    raise ConfigError(
                        f"data.tokenizer.eos_token = {eos_token}: must be a special token of the tokenizer; the text "
                        f"{yaml_value([document.text])} has it, and would end there"
                    )
                writer.add_document("validation" if document.validation else "train", ids, len(document.text.encode()))
        if not writer.documents:
            raise ConfigError(f"data.corpus: its {len(files)} files hold no UTF-8 text")
        _refuse_changed_files(config, files)
        return writer.publish(documents.skipped_files)


def _make_tokenizer(config: DataConfig, tokenizer_json: TokenizerJson | None, documents: Documents) -> TextTokenizer:
    if tokenizer_json is not None and isinstance(config.tokenizer, FileTokenizer):
        return load_tokenizer(tokenizer_json.text, tokenizer_json.eos_token, config.tokenizer.path)
    if not isinstance(config.tokenizer, BpeTokenizer):
        return BytesTokenizer()
    training = (document.text for document in documents if not document.validation)
    total = sum(file.size for file in documents.files)
    return train_bpe(config.tokenizer, sample_evenly(training, total, config.tokenizer.train_bytes))


def _document_batches(documents: Documents) -> Iterator[list[Document]]:
    """Documents in groups large enough to keep all cores busy."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _npy_bytes(values: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def _refuse_changed_files(config: DataConfig, files: list[SourceFile]) -> None:
    before = {file.location: file for file in files}
    for file in list_files(config.corpus):
        if before.pop(file.location, None) != file:
            raise ConfigError(f"data.corpus: {file.location} changed while it was being read")
    for location in before:
        raise ConfigError(f"data.corpus: {location} disappeared while the corpus was being read")


def shard_bytes_estimate(config: DataConfig, corpus_bytes: int) -> int:
    """Bytes the shards take at most, in all likelihood."""
    if isinstance(config.corpus, ShardsCorpus):
        return 0
    if isinstance(config.corpus, SyntheticCorpus):
        return config.corpus.tokens * np.dtype(id_dtype(config.corpus.vocab_size)).itemsize
    if isinstance(config.tokenizer, BpeTokenizer | FileTokenizer):
        id_bytes = 4 if isinstance(config.tokenizer, FileTokenizer) else 2
        return corpus_bytes * id_bytes // _MIN_BYTES_PER_TOKEN
    return corpus_bytes * 2


def ready_made_shards(corpus: ShardsCorpus, files: list[SourceFile], validation_fraction: float) -> list[Shard]:
    """The files as shards, held out by file; of a single file its tail is held out, from an end of a document on.

    Reads every id. Raises ConfigError for an id that is not below the vocabulary, or a size that is not whole ids.
    """
    tokens = {file.name: _count_valid_tokens(corpus, file) for file in files}
    if len(files) == 1:
        return _divide_single_file(corpus, files[0], tokens[files[0].name], validation_fraction)
    validation = held_out_names([file.name for file in files], validation_fraction)
    return [
        Shard(split="validation" if file.name in validation else "train", path=file.location, tokens=tokens[file.name])
        for file in files
        if tokens[file.name]
    ]


def _divide_single_file(corpus: ShardsCorpus, file: SourceFile, tokens: int, fraction: float) -> list[Shard]:
    boundary = tokens - round(tokens * fraction)
    if corpus.eos_id is not None:
        ends = np.flatnonzero(_map_token_ids(corpus, file)[boundary:] == corpus.eos_id)
        boundary += int(ends[0]) + 1 if ends.size else 0
    return [
        Shard(split="train", path=file.location, tokens=boundary),
        Shard(split="validation", path=file.location, first_token=boundary, tokens=tokens - boundary),
    ]


def _count_valid_tokens(corpus: ShardsCorpus, file: SourceFile) -> int:
    itemsize = np.dtype(corpus.dtype).itemsize
    if file.size % itemsize:
        raise ConfigError(f"data.corpus.dtype = {corpus.dtype}: {file.location} has {file.size} bytes, not whole ids")
    for first, ids in _token_id_chunks(corpus, file):
        largest = int(ids.max())
        if largest >= corpus.vocab_size:
            place = first + int(np.argmax(ids == largest))
            raise ConfigError(
                f"data.corpus.vocab_size = {corpus.vocab_size}: {file.location} has the id {largest} at {place}"
            )
        if corpus.dtype == "uint16" and ids.size > _ENOUGH_IDS and not ids[1::2].any():
            raise ConfigError(
                f"data.corpus.dtype = uint16: every second id of {file.location} is 0, as in a file of uint32"
            )
    return file.size // itemsize


def _token_id_chunks(corpus: ShardsCorpus, file: SourceFile) -> Iterator[tuple[int, npt.NDArray[np.integer]]]:
    ids = _map_token_ids(corpus, file)
    for first in range(0, ids.size, _CHUNK_TOKENS):
        yield first, ids[first : first + _CHUNK_TOKENS]


def _map_token_ids(corpus: ShardsCorpus, file: SourceFile) -> npt.NDArray[np.integer]:
    dtype = np.dtype(corpus.dtype).newbyteorder("<")
    return np.memmap(file.location, dtype=dtype, mode="r") if file.size else np.empty(0, dtype)
