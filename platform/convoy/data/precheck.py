"""What can be known to be wrong with the data before a run starts, without reading it."""

import importlib.util

from convoy.config.data import DataConfig, DatasetCorpus, FileTokenizer, ShardsCorpus, SyntheticCorpus
from convoy.data.documents import missing_datasets
from convoy.data.manifest import require_vocabulary
from convoy.data.sources import iterate_files, nothing_found
from convoy.data.tokenizer_json import read_tokenizer_json


def precheck(config: DataConfig, model_vocab_size: int | None = None) -> None:
    """Raise ConfigError for a missing extra, path or tokenizer, no match, or a tokenizer the model is too small for."""
    corpus = config.corpus
    if isinstance(corpus, DatasetCorpus) and importlib.util.find_spec("datasets") is None:
        raise missing_datasets()
    if not isinstance(corpus, SyntheticCorpus) and next(iterate_files(corpus), None) is None:
        raise nothing_found(corpus)
    if isinstance(config.tokenizer, FileTokenizer) and not isinstance(corpus, ShardsCorpus | SyntheticCorpus):
        vocab_size = read_tokenizer_json(config.tokenizer).vocab_size
        if model_vocab_size is not None:
            require_vocabulary(vocab_size, model_vocab_size)
