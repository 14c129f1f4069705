"""What a rank leaves after the last step: memory peak, sample text, and the model as a Hugging Face folder."""

import tempfile
from pathlib import Path
from typing import cast

import torch.distributed as dist

from convoy.checkpoint.commit import Progress
from convoy.data.manifest import TOKENIZER_FILE
from convoy.events.log import EventWriter
from convoy.events.types import SampleText
from convoy.gang.assignment import Assignment
from convoy.job.lineage import CommitRef
from convoy.model.generate import generate
from convoy.model.transformer import Transformer
from convoy.parallel.fsdp import DTYPES
from convoy.storage import Store, open_store
from convoy.training.batches import Data
from convoy.training.export import export_commit, exportable
from convoy.training.measure import memory_peak
from convoy.training.model import Trained
from convoy.training.ranks import Ranks

GATHERED_BYTES = 4 * 1024**3
"""Sample text is made with the whole model gathered on each rank if its weights take at most this."""


def finish(
    assignment: Assignment, ranks: Ranks, trained: Trained, data: Data, events: EventWriter, progress: Progress
) -> None:
    """All ranks call it after the last commit. Failing to export is told on standard output, and fails nothing."""
    events.append(memory_peak(ranks, progress.step))
    write_samples(assignment, ranks, trained, data, events, progress.step)
    # From here on rank 0 is alone. Nobody waits for it: to export a large model takes longer than a barrier may.
    dist.barrier(group=ranks.control)
    if ranks.first and assignment.config.checkpoint.export_model and exportable(assignment.config.model):
        export_last(assignment, data, progress.step)


def write_samples(
    assignment: Assignment, ranks: Ranks, trained: Trained, data: Data, events: EventWriter, step: int
) -> None:
    """Continue each prompt of the configuration; all ranks run the same forward passes."""
    wanted, tokenizer = assignment.config.evaluation, data.tokenizer()
    if tokenizer is None or wanted.sample_tokens == 0:
        return
    if gathered_bytes(trained, assignment.config.train.param_dtype) <= GATHERED_BYTES:
        # Kept gathered: token by token, the gathers would cost more than the passes.
        trained.fsdp.set_reshard_after_forward(False)
    for i, prompt in enumerate(wanted.prompts):
        ids = [int(x) for x in tokenizer.encode_batch([prompt])[0]] or [tokenizer.eos_id]
        seed = assignment.config.train.seed + i
        model = cast(Transformer, trained.module)
        drawn = generate(model, ids, wanted.sample_tokens, wanted.temperature, seed, tokenizer.eos_id)
        if ranks.first:
            events.append(SampleText(step=step, prompt=prompt, text=tokenizer.decode(drawn)))


def gathered_bytes(trained: Trained, param_dtype: str) -> int:
    """Bytes of the whole model's weights in the type of forward; the same on all ranks."""
    return sum(p.numel() for p in trained.module.parameters()) * DTYPES[param_dtype].itemsize


def export_last(assignment: Assignment, data: Data, step: int) -> None:
    """Export this generation's commit of `step`. The job is trained and committed, whatever goes wrong here."""
    ref = CommitRef(generation=assignment.generation, step=step)
    try:
        store = open_store(assignment.job_uri)
        if ref.name in store.sizes(ref.name):  # a job that had nothing left to do made no commit
            put_model(store, ref, assignment, data)
    except Exception as error:
        print(f"the model was not exported: {type(error).__name__}: {error}")


def put_model(store: Store, ref: CommitRef, assignment: Assignment, data: Data) -> None:
    """Write the commit's weights as `model/<g>-<step>/…` of the job."""
    with tempfile.TemporaryDirectory(prefix="convoy-model-") as folder:
        tokenizer = data.folder / TOKENIZER_FILE
        export_commit(store, ref, assignment.config.model, Path(folder), tokenizer, data.manifest.eos_id)
        for path in sorted(Path(folder).iterdir()):
            store.write(f"{model_prefix(ref)}{path.name}", path.read_bytes())


def model_prefix(ref: CommitRef) -> str:
    """Where the exported model of a commit lies."""
    return f"model/{ref.generation:06d}-{ref.step:09d}/"
