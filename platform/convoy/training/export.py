"""The weights of a commit, whole and on one host."""

from pathlib import Path
from typing import Any

import torch

from convoy.checkpoint.commit import read_commit
from convoy.checkpoint.restore import restore
from convoy.config.errors import ConfigError
from convoy.config.model import CustomModelConfig, TransformerConfig
from convoy.config.run import RunConfig
from convoy.data.local import open_data
from convoy.data.manifest import read_manifest
from convoy.job.lineage import CommitRef, lineage, read_history
from convoy.model.build import build_model
from convoy.model.hf import write_hf
from convoy.model.hf_config import family
from convoy.storage import Store, open_store


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
    empty = build_model(model).to_empty(device="cpu")  # made on meta: to draw initial weights would take minutes
    weights = dict(empty.state_dict())
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


def export_job(store: Store, root: str, config_json: dict[str, Any], folder: Path, step: int | None) -> CommitRef:
    """Write the newest commit that counts, at or below `step`, to `folder`. Raises ConfigError if there is none."""
    counted = [c for c in lineage(read_history(store)) if step is None or c.step <= step]
    if not counted:
        raise ConfigError(f"job = {store.uri}: no checkpoint" + ("" if step is None else f" at or below step {step}"))
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"folder = {folder}: must be empty or absent")
    ref, config = counted[-1], RunConfig.model_validate(config_json)
    data_id = read_commit(store, ref).data_id
    manifest = read_manifest(open_store(root), data_id)
    tokenizer = None if manifest is None else open_data(manifest, open_store(root), config.data) / "tokenizer.json"
    export_commit(store, ref, config.model, folder, tokenizer, manifest.eos_id if manifest else None)
    return ref
