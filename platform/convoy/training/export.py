"""The weights of a commit, whole and on one host."""

from pathlib import Path

import torch

from convoy.checkpoint.restore import restore
from convoy.config.errors import ConfigError
from convoy.config.model import CustomModelConfig, TransformerConfig
from convoy.job.lineage import CommitRef
from convoy.model.build import build_model
from convoy.model.hf import write_hf
from convoy.model.hf_config import family
from convoy.storage import Store


def exportable(model: TransformerConfig | CustomModelConfig) -> bool:
    """Whether a Hugging Face model class has this shape."""
    if isinstance(model, CustomModelConfig):
        return False
    try:
        family(model)
    except ConfigError:
        return False
    return True


def commit_weights(store: Store, ref: CommitRef, model: TransformerConfig) -> dict[str, torch.Tensor]:
    """The fp32 weights of a commit by our names, on the host. Raises DamagedCommitError, StoreUnavailable."""
    weights = dict(build_model(model, device="cpu").state_dict())
    restore(store, ref, {"model": weights}, None)
    return weights


def export_commit(
    store: Store,
    ref: CommitRef,
    model: TransformerConfig | CustomModelConfig,
    folder: Path,
    tokenizer_json: Path | None,
    eos_id: int | None,
) -> None:
    """Write a commit as a folder that `transformers` loads. Raises ConfigError for a shape it has no class for."""
    if isinstance(model, CustomModelConfig):
        raise ConfigError(f"model.build = {model.build}: a custom model has no Hugging Face form")
    family(model)
    there = tokenizer_json if tokenizer_json is not None and tokenizer_json.exists() else None
    write_hf(folder, model, commit_weights(store, ref, model), there, eos_id)
