"""The weights of a commit, whole and on one host."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from convoy.checkpoint.format import DamagedCommitError
from convoy.config.errors import ConfigError
from convoy.config.model import CustomModelConfig, TransformerConfig
from convoy.config.run import RunConfig
from convoy.data.local_cache import open_data
from convoy.data.manifest import read_manifest
from convoy.job.leases import lease
from convoy.job.lineage import CommitRef, lineage, places, read_history
from convoy.job.record import tier_stores
from convoy.model.build import build_model
from convoy.model.hf import write_hf
from convoy.model.hf_config import hf_format
from convoy.storage import Store, StoreUnavailable, open_store
from convoy.training.checkpointing.restore import PREFIX, check_same_model

THREADS = 8
"""Chunks that are read at once."""


def exportable(model: TransformerConfig | CustomModelConfig) -> bool:
    """Whether a Hugging Face model class has this shape."""
    if isinstance(model, CustomModelConfig):
        return False
    try:
        hf_format(model)
    except ConfigError:
        return False
    return True


def commit_weights(tiers: Sequence[Store], ref: CommitRef, model: TransformerConfig) -> dict[str, torch.Tensor]:
    """The fp32 weights of a commit by our names, on the host; from the first tier that has them whole.

    Every byte of them is checked. Raises DamagedCommitError, StoreUnavailable, ConfigError if it is of another model.
    """
    empty = build_model(model).to_empty(device="cpu")  # made on meta: to draw initial weights would take minutes
    weights = dict(empty.state_dict())
    errors: list[DamagedCommitError | StoreUnavailable] = []
    for tier in tiers:
        try:
            _read_weights(tier, ref, weights)
        except (DamagedCommitError, StoreUnavailable) as error:
            errors.append(error)
        else:
            return weights
    raise errors[0]


def _read_weights(store: Store, ref: CommitRef, weights: dict[str, torch.Tensor]) -> None:
    from convoy.checkpoint.commits import read_commit, read_part  # every worker imports this module before its start
    from convoy.checkpoint.restore.fill import fill

    with contextlib.ExitStack() as held:
        with contextlib.suppress(StoreUnavailable):  # whoever may only read takes no lease
            held.enter_context(lease(store, ref))
        commit = read_commit(store, ref)
        check_same_model(commit, {name: list(tensor.shape) for name, tensor in weights.items()})
        parts = [read_part(store, commit, writer) for writer in range(len(commit.parts))]
        fill(store, commit, parts, {PREFIX + name: tensor for name, tensor in weights.items()}, THREADS)


def export_commit(
    tiers: Sequence[Store],
    ref: CommitRef,
    model: TransformerConfig | CustomModelConfig,
    folder: Path,
    tokenizer_json: Path | None,
    eos_id: int | None,
) -> None:
    """Write a commit as a folder that `transformers` loads. Raises ConfigError for a shape it has no class for."""
    if isinstance(model, CustomModelConfig):
        raise ConfigError(f"model.build = {model.build}: a custom model has no Hugging Face form")
    hf_format(model)
    there = tokenizer_json if tokenizer_json is not None and tokenizer_json.exists() else None
    write_hf(folder, model, commit_weights(tiers, ref, model), there, eos_id)


def export_job(root: str, job: str, config_json: dict[str, Any], folder: Path, step: int | None) -> CommitRef:
    """Write the newest commit that counts, at or below `step`, to `folder`. Raises ConfigError if there is none."""
    from convoy.checkpoint.commits import read_commit

    config = RunConfig.model_validate(config_json)
    tiers = tier_stores(root, job, config)
    history = read_history(tiers[0], tiers[1:])
    counted = [c for c in lineage(history) if step is None or c.step <= step]
    if not counted:
        wanted = "" if step is None else f" at or below step {step}"
        raise ConfigError(f"job = {tiers[0].uri}: no checkpoint{wanted}")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"folder = {folder}: must be empty or absent")
    ref = counted[-1]
    data_id = read_commit(tiers[places(history, ref)[0]], ref).data_id
    data = open_store(root, config.checkpoint.store)
    manifest = read_manifest(data, data_id)
    tokenizer = None if manifest is None else open_data(manifest, data, config.data) / "tokenizer.json"
    export_commit(tiers, ref, config.model, folder, tokenizer, manifest.eos_id if manifest else None)
    return ref
