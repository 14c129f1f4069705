"""The weights of a commit, whole and on one host."""

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from convoy.checkpoint.format import DamagedCommitError
from convoy.config.errors import ConfigError
from convoy.config.model import CustomModelConfig, TransformerConfig
from convoy.config.run import RunConfig
from convoy.data.local_cache import ensure_local_data
from convoy.data.manifest import TOKENIZER_FILE, read_manifest
from convoy.gang.task import Assignment
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import ExportFailed, SampleText
from convoy.job.leases import lease
from convoy.job.lineage import CommitRef, counted_commits, intact_tiers, read_history
from convoy.job.record import MODEL_MARKER, is_exported, model_prefix, tier_stores
from convoy.model.build import build_model
from convoy.model.generate import generate
from convoy.model.hf import write_hf
from convoy.model.hf_config import hf_format
from convoy.model.transformer import Transformer
from convoy.parallel.fsdp import DTYPES
from convoy.storage import Store, StoreUnavailable, open_store
from convoy.training.batches import RankData
from convoy.training.checkpointing.restore import PREFIX, check_same_model
from convoy.training.data import TrainingData
from convoy.training.engines.engine import Engine
from convoy.training.measure.machine import memory_peak
from convoy.training.process_groups import Ranks

GATHERED_BYTES = 4 * 1024**3
"""Sample text is made with the whole model gathered on each rank if its weights take at most this."""


def sample_and_export(
    assignment: Assignment,
    ranks: Ranks,
    engine: Engine,
    data: TrainingData,
    events: EventWriter,
    step: int,
    tiers: list[Store],
    commit: CommitRef | None,
) -> None:
    """All ranks call it after the last commit, of `step`. A failed export is logged, and fails nothing else."""
    events.append(memory_peak(ranks, step))
    log_sample_texts(assignment, ranks, engine, data, events, step)
    # From here on rank 0 is alone. Nobody waits for it: to export a large model takes longer than a barrier may.
    dist.barrier(group=ranks.control)
    wanted = assignment.config.checkpoint.export_model and is_exportable(assignment.config.model)
    if ranks.first and wanted and commit is not None and isinstance(data, RankData):
        failure = export_to_store(tiers, commit, assignment, data)
        if failure is not None:
            events.append(ExportFailed(step=step, error=failure))


def log_sample_texts(
    assignment: Assignment, ranks: Ranks, engine: Engine, data: TrainingData, events: EventWriter, step: int
) -> None:
    """Continue each prompt of the configuration; all ranks run the same forward passes."""
    wanted, tokenizer = assignment.config.evaluation, data.tokenizer()
    model = engine.module
    if tokenizer is None or wanted.sample_tokens == 0:
        return
    if not isinstance(model, Transformer):
        return  # a module of the user's may take no input that is shorter than it was trained on
    if gathered_weight_bytes(engine, assignment.config.train.param_dtype) <= GATHERED_BYTES:
        engine.keep_gathered()  # token by token, the gathers would cost more than the passes
    for i, prompt in enumerate(wanted.prompts):
        ids = [int(x) for x in tokenizer.encode_batch([prompt])[0]] or [tokenizer.eos_id]
        seed = assignment.config.train.seed + i
        drawn = generate(model, ids, wanted.sample_tokens, wanted.temperature, seed, tokenizer.eos_id)
        if ranks.first:
            events.append(SampleText(step=step, prompt=prompt, text=tokenizer.decode(drawn)))


def gathered_weight_bytes(engine: Engine, param_dtype: str) -> int:
    """Bytes of the whole model's weights in the type of forward; the same on all ranks."""
    return sum(p.numel() for p in engine.module.parameters()) * DTYPES[param_dtype].itemsize


def export_to_store(tiers: list[Store], ref: CommitRef, assignment: Assignment, data: RankData) -> str | None:
    """Write the newest commit's weights as `model/<g>-<step>/…` of the job, unless they are there; why that failed, in
    one line. The job is committed all the same."""
    try:
        # A generation that had nothing left to do made no commit; one before it may have died while it exported.
        if is_exported(tiers[0], ref):
            return None
        with tempfile.TemporaryDirectory(prefix="convoy-model-") as folder:
            tokenizer = data.folder / TOKENIZER_FILE
            export_commit(tiers, ref, assignment.config.model, Path(folder), tokenizer, data.manifest.eos_id)
            # The marker last: a folder without it is not a model.
            for path in sorted(Path(folder).iterdir(), key=lambda path: path.name == MODEL_MARKER):
                tiers[0].write(f"{model_prefix(ref)}{path.name}", path.read_bytes())
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


THREADS = 8
"""Chunks that are read at once."""


def is_exportable(model: TransformerConfig | CustomModelConfig) -> bool:
    """Whether a Hugging Face model class has this shape."""
    if isinstance(model, CustomModelConfig):
        return False
    try:
        hf_format(model)
    except ConfigError:
        return False
    return True


def read_commit_weights(tiers: Sequence[Store], ref: CommitRef, model: TransformerConfig) -> dict[str, torch.Tensor]:
    """The fp32 weights of a commit by our names, on the host; from the first tier that has them whole.

    Every byte of them is checked. Raises DamagedCommitError, StoreUnavailable, ConfigError if it is of another model.
    """
    empty = build_model(model).to_empty(device="cpu")  # made on meta: to draw initial weights would take minutes
    weights = dict(empty.state_dict())
    errors: list[DamagedCommitError | StoreUnavailable] = []
    for tier in tiers:
        try:
            _read_weights_into(tier, ref, weights)
        except (DamagedCommitError, StoreUnavailable) as error:
            errors.append(error)
        else:
            return weights
    raise errors[0]


def _read_weights_into(store: Store, ref: CommitRef, weights: dict[str, torch.Tensor]) -> None:
    from convoy.checkpoint.commits import read_commit, read_part  # every worker imports this module before its start
    from convoy.checkpoint.restore.reshard import reshard

    with contextlib.ExitStack() as held:
        with contextlib.suppress(StoreUnavailable):  # whoever may only read takes no lease
            held.enter_context(lease(store, ref))
        commit = read_commit(store, ref)
        check_same_model(commit, {name: list(tensor.shape) for name, tensor in weights.items()})
        parts = [read_part(store, commit, writer) for writer in range(len(commit.parts))]
        reshard(store, commit, parts, {PREFIX + name: tensor for name, tensor in weights.items()}, THREADS)


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
    write_hf(folder, model, read_commit_weights(tiers, ref, model), there, eos_id)


def export_to_folder(root: str, job: str, config_json: dict[str, Any], folder: Path, step: int | None) -> CommitRef:
    """Write the newest commit that counts, at or below `step`, to `folder`. Raises ConfigError if there is none."""
    from convoy.checkpoint.commits import read_commit

    config = RunConfig.model_validate(config_json)
    tiers = tier_stores(root, job, config)
    history = read_history(tiers[0], tiers[1:])
    counted = [c for c in counted_commits(history) if step is None or c.step <= step]
    if not counted:
        wanted = "" if step is None else f" at or below step {step}"
        raise ConfigError(f"job = {tiers[0].uri}: no checkpoint{wanted}")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"folder = {folder}: must be empty or absent")
    ref = counted[-1]
    data_id = read_commit(tiers[intact_tiers(history, ref)[0]], ref).data_id
    data = open_store(root, config.checkpoint.store)
    manifest = read_manifest(data, data_id)
    tokenizer = None if manifest is None else ensure_local_data(manifest, data, config.data) / "tokenizer.json"
    export_commit(tiers, ref, config.model, folder, tokenizer, manifest.eos_id if manifest else None)
    return ref
