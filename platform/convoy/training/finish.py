"""What a rank leaves after the last step: memory peak, sample text, and the model as a Hugging Face folder."""

import tempfile
from pathlib import Path

import torch.distributed as dist

from convoy.data.manifest import TOKENIZER_FILE
from convoy.gang.task import Assignment
from convoy.job.events.log import EventWriter
from convoy.job.events.types import ExportFailed, SampleText
from convoy.job.lineage import CommitRef
from convoy.job.record import MODEL_MARKER, is_exported, model_prefix
from convoy.model.generate import generate
from convoy.model.transformer import Transformer
from convoy.parallel.fsdp import DTYPES
from convoy.storage import Store
from convoy.training.batches import Data
from convoy.training.build import Trained
from convoy.training.export import export_commit, exportable
from convoy.training.measure.machine import memory_peak
from convoy.training.process_groups import Ranks

GATHERED_BYTES = 4 * 1024**3
"""Sample text is made with the whole model gathered on each rank if its weights take at most this."""


def finish(
    assignment: Assignment,
    ranks: Ranks,
    trained: Trained,
    data: Data,
    events: EventWriter,
    step: int,
    tiers: list[Store],
    commit: CommitRef | None,
) -> None:
    """All ranks call it after the last commit, of `step`. Failing to export is told in the log, and fails nothing."""
    events.append(memory_peak(ranks, step))
    write_samples(assignment, ranks, trained, data, events, step)
    # From here on rank 0 is alone. Nobody waits for it: to export a large model takes longer than a barrier may.
    dist.barrier(group=ranks.control)
    wanted = assignment.config.checkpoint.export_model and exportable(assignment.config.model)
    if ranks.first and wanted and commit is not None:
        failure = export_last(tiers, commit, assignment, data)
        if failure is not None:
            events.append(ExportFailed(step=step, error=failure))


def write_samples(
    assignment: Assignment, ranks: Ranks, trained: Trained, data: Data, events: EventWriter, step: int
) -> None:
    """Continue each prompt of the configuration; all ranks run the same forward passes."""
    wanted, tokenizer = assignment.config.evaluation, data.tokenizer()
    model = trained.module
    if tokenizer is None or wanted.sample_tokens == 0:
        return
    if not isinstance(model, Transformer):
        return  # a module of the user's may take no input that is shorter than it was trained on
    if gathered_bytes(trained, assignment.config.train.param_dtype) <= GATHERED_BYTES:
        # Kept gathered: token by token, the gathers would cost more than the passes.
        trained.fsdp.set_reshard_after_forward(False)
    for i, prompt in enumerate(wanted.prompts):
        ids = [int(x) for x in tokenizer.encode_batch([prompt])[0]] or [tokenizer.eos_id]
        seed = assignment.config.train.seed + i
        drawn = generate(model, ids, wanted.sample_tokens, wanted.temperature, seed, tokenizer.eos_id)
        if ranks.first:
            events.append(SampleText(step=step, prompt=prompt, text=tokenizer.decode(drawn)))


def gathered_bytes(trained: Trained, param_dtype: str) -> int:
    """Bytes of the whole model's weights in the type of forward; the same on all ranks."""
    return sum(p.numel() for p in trained.module.parameters()) * DTYPES[param_dtype].itemsize


def export_last(tiers: list[Store], ref: CommitRef, assignment: Assignment, data: Data) -> str | None:
    """Export the newest commit unless it is; why that failed, in one line. The job is committed all the same."""
    try:
        # A generation that had nothing left to do made no commit; one before it may have died while it exported.
        if not is_exported(tiers[0], ref):
            put_model(tiers, ref, assignment, data)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def put_model(tiers: list[Store], ref: CommitRef, assignment: Assignment, data: Data) -> None:
    """Write the commit's weights as `model/<g>-<step>/…` of the job."""
    with tempfile.TemporaryDirectory(prefix="convoy-model-") as folder:
        tokenizer = data.folder / TOKENIZER_FILE
        export_commit(tiers, ref, assignment.config.model, Path(folder), tokenizer, data.manifest.eos_id)
        # The marker last: a folder without it is not a model.
        for path in sorted(Path(folder).iterdir(), key=lambda path: path.name == MODEL_MARKER):
            tiers[0].write(f"{model_prefix(ref)}{path.name}", path.read_bytes())
