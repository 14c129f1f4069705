"""The corpus, the tokenizer, and how documents become sequences; or a user's own dataset."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from convoy.config.base import FUNCTION, FrozenConfig


def _refuse_google(corpus: Any) -> Any:
    if corpus.path.startswith("gs://"):
        raise ValueError(f"path = {corpus.path}: not read from gs://; must be a local path, or of kind files on s3://")
    return corpus


class StdlibCorpus(FrozenConfig):
    """Python source of the running interpreter's own standard library: 10 to 30 MB, depending on how Python was
    packaged."""

    kind: Literal["stdlib"] = "stdlib"
    """Chooses this corpus."""


class FilesCorpus(FrozenConfig):
    """Text or JSON-lines files: a folder, a glob, or an `s3://bucket/prefix`."""

    kind: Literal["files"]
    """Chooses this corpus."""
    path: str
    """A folder (searched recursively), a glob with `*` or `**`, one file, or an s3:// prefix or glob; not gs://.
    Neither the search of a folder nor `**` follows symbolic links to folders."""
    format: Literal["text", "jsonl"] = "text"
    """One document per file, or one per line."""
    suffixes: tuple[str, ...] = ()
    """In a folder or prefix, only files with one of these endings. Default: `.txt .md .py` for text, `.jsonl` for JSON
    lines."""
    field: str = "text"
    """Key of the document's text in each JSON line."""

    _path_is_read = model_validator(mode="after")(_refuse_google)


class DatasetCorpus(FrozenConfig):
    """A Hugging Face dataset on disk, as `Dataset.save_to_disk` writes it (extra `datasets`)."""

    kind: Literal["hf"]
    """Chooses this corpus."""
    path: str
    """The dataset's folder; of a DatasetDict, its `train` split is used."""
    field: str = "text"
    """Column with the document's text."""

    _path_is_read = model_validator(mode="after")(_refuse_google)


class ShardsCorpus(FrozenConfig):
    """Token shards made elsewhere: raw little-endian ids in `*.bin`, no header. Needs no tokenizer."""

    kind: Literal["shards"]
    """Chooses this corpus."""
    path: str
    """Folder or glob of the `.bin` files, read in name order."""
    dtype: Literal["uint16", "uint32"] = "uint16"
    """Type of one id."""
    vocab_size: int = Field(ge=2)
    """Every id is below this."""
    eos_id: int | None = Field(None, ge=0)
    """Id that ends a document; needed for `respect_documents`, and without `packing`."""

    _path_is_read = model_validator(mode="after")(_refuse_google)

    @model_validator(mode="after")
    def _eos_below_vocabulary(self) -> "ShardsCorpus":
        if self.eos_id is not None and self.eos_id >= self.vocab_size:
            raise ValueError(f"eos_id = {self.eos_id}: must be below vocab_size, {self.vocab_size}")
        return self


class SyntheticCorpus(FrozenConfig):
    """Tokens from a seeded Markov chain: learnable, needs no input. For tests and throughput."""

    kind: Literal["synthetic"]
    """Chooses this corpus."""
    tokens: int = Field(1_000_000, ge=1)
    """Number of tokens."""
    vocab_size: int = Field(256, ge=2)
    """Ids are below this."""
    seed: int = Field(0, ge=0)
    """Seed of the generator."""


Corpus = Annotated[
    StdlibCorpus | FilesCorpus | DatasetCorpus | ShardsCorpus | SyntheticCorpus, Field(discriminator="kind")
]


class BpeTokenizer(FrozenConfig):
    """A byte-level BPE trained on the corpus's training documents."""

    kind: Literal["bpe"] = "bpe"
    """Chooses this tokenizer."""
    vocab_size: int = Field(4096, ge=257)
    """Size of the vocabulary, including the end-of-document id."""
    train_bytes: int = Field(50_000_000, ge=1)
    """Train on at most this many bytes of documents, chosen evenly."""


class BytesTokenizer(FrozenConfig):
    """Raw UTF-8 bytes: ids 0 to 255, and 256 ends a document."""

    kind: Literal["bytes"]
    """Chooses this tokenizer."""


class FileTokenizer(FrozenConfig):
    """A `tokenizer.json` of the `tokenizers` library."""

    kind: Literal["file"]
    """Chooses this tokenizer."""
    path: str
    """The file."""
    eos_token: str | None = None
    """Token that ends a document. Default: the first of `<|endoftext|>`, `</s>`, `<|end_of_text|>` it has."""


Tokenizer = Annotated[BpeTokenizer | BytesTokenizer | FileTokenizer, Field(discriminator="kind")]


_OF_TOKENS = ("corpus", "tokenizer", "sequence_length", "packing", "respect_documents", "validation_fraction")

_OF_DATASETS = ("args", "collate", "workers", "unit")


class DataConfig(FrozenConfig):
    """From a corpus to fixed-length sequences; or, with `build`, the samples of a dataset of one's own."""

    corpus: Corpus = StdlibCorpus()
    """Where documents come from."""
    tokenizer: Tokenizer = BpeTokenizer()
    """How text becomes ids. Not used for `shards` and `synthetic`."""
    sequence_length: int = Field(256, ge=2)
    """Tokens per training sequence."""
    packing: bool = True
    """Fill each sequence with consecutive documents. False: a sequence has one document and is padded; longer documents
    are cut."""
    respect_documents: bool = False
    """Attention does not look across document boundaries, and positions start again at each document."""
    validation_fraction: float = Field(0.05, gt=0, lt=1)
    """Share of files (of documents, if there is one file) held out for evaluation, chosen by a hash of the name."""
    cache: str | None = None
    """Local folder for the memory-mapped shards of a remote root. Default: `convoy` in the user's cache folder."""
    build: str | None = Field(None, pattern=FUNCTION)
    """`package.module:function`; called with `"train"` or `"validation"` and `args`, returns a `torch.utils.data`
    Dataset, or None where there is nothing to evaluate on. For `model.task: module`; the keys above do not apply."""
    args: dict[str, Any] = {}
    """Keyword arguments of that function."""
    collate: str | None = Field(None, pattern=FUNCTION)
    """`package.module:function` that makes a batch, a dict or tuple with tensors, of a list of samples. Default:
    torch's `default_collate`."""
    workers: int = Field(0, ge=0)
    """Processes of each rank that read samples ahead, as `num_workers` of torch's DataLoader."""
    unit: str = Field("samples", pattern=r"^[a-z][a-z ]*$")
    """What a sample is called on cards, in the plural, such as images."""

    @model_validator(mode="after")
    def _check_one_kind(self) -> "DataConfig":
        fields = type(self).model_fields
        own = [name for name in _OF_DATASETS + _OF_TOKENS if getattr(self, name) != fields[name].default]
        for name in own:
            if self.build is None and name in _OF_DATASETS:
                raise ValueError(f"{name} = {getattr(self, name)}: only with build")
            if self.build is not None and name in _OF_TOKENS:
                raise ValueError(f"{name}: not with build = {self.build}, which gives the samples themselves")
        return self

    @model_validator(mode="after")
    def _has_document_boundaries(self) -> "DataConfig":
        set_keys = {"respect_documents = true": self.respect_documents, "packing = false": not self.packing}
        for key in (key for key, is_set in set_keys.items() if is_set and not has_document_ends(self)):
            raise ValueError(f"{key}: the {self.corpus.kind} corpus names no eos_id")
        if self.respect_documents and not self.packing:
            raise ValueError("respect_documents = true: without packing no sequence has more than one document")
        return self


def has_document_ends(data: DataConfig) -> bool:
    """Whether it is known where documents end."""
    if isinstance(data.corpus, ShardsCorpus):
        return data.corpus.eos_id is not None
    return not isinstance(data.corpus, SyntheticCorpus)
