"""Batches of torch tensors from the prepared data: this rank's part of every step, and of the held-out split."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from convoy.config.run import RunConfig
from convoy.data.local_cache import ensure_local_data, open_token_bytes, open_tokenizer
from convoy.data.manifest import (
    DataDamaged,
    PreparedData,
    check_vocabulary,
    data_fingerprint,
    read_manifest,
    refuse_short_splits,
)
from convoy.data.prefetch import Prefetcher
from convoy.data.sampler import plan_step
from convoy.data.sequences import IGNORED, TokenBatch, TokenSequences, validation_samples
from convoy.data.tokenizer import TextTokenizer
from convoy.parallel.mesh import data_rank_and_size
from convoy.storage import open_store
from convoy.training.batch import Batch
from convoy.training.data import TrainingData
from convoy.training.process_groups import Ranks


class RankData(TrainingData):
    """The prepared data of a job as one rank sees it."""

    def __init__(self, config: RunConfig, root: str, data_id: str, expected_fingerprint: str, ranks: Ranks) -> None:
        """Raises ConfigError if the data does not fit the model, DataDamaged if it is not what was prepared."""
        store = open_store(root, config.checkpoint.store)
        manifest = read_manifest(store, data_id)
        if manifest is None:
            raise DataDamaged(f"{root}: prepared data {data_id} is gone")
        actual = data_fingerprint(manifest, config.data)
        if actual != expected_fingerprint:
            raise DataDamaged(f"{root}: prepared data {data_id} has fingerprint {actual}, not {expected_fingerprint}")
        check_vocabulary(manifest.vocab_size, config.model.vocab_size)
        refuse_short_splits(manifest, config.data.sequence_length)
        self.fingerprint, self.data_id = expected_fingerprint, data_id
        self.manifest: PreparedData = manifest
        self.folder: Path = ensure_local_data(manifest, store, config.data)
        self._config = config
        self._ranks = ranks
        self._part = data_rank_and_size(ranks.mesh)
        self._train = self._sequences("train")
        self._validation = self._sequences("validation")

    def prefetch_from(self, first_step: int) -> Prefetcher[Sequence[Batch]]:
        """This rank's micro batches of every step from `first_step` on, made ahead as `train.prefetch_steps` says."""
        return Prefetcher(self._step_batches, first_step, self._config.train.steps, self._config.train.prefetch_steps)

    def validation_batches(self) -> list[Batch]:
        """This rank's part of the held-out sequences, the same each time; equally many batches on all ranks."""
        config = self._config
        passes = validation_samples(
            self._validation.n_samples, config.evaluation.sequences, *self._part, config.train.micro_batch
        )
        return [self._batch_on_device(0, self._validation.batch(ids)) for ids in passes]

    def token_bytes_v(self) -> torch.Tensor | None:
        """UTF-8 bytes of each id (V,); None where tokens have no exact bytes."""
        counts = open_token_bytes(self.manifest, self.folder)
        return None if counts is None else torch.from_numpy(counts.astype(np.int64))

    def tokenizer(self) -> TextTokenizer | None:
        """The tokenizer; None where tokens have no text."""
        return open_tokenizer(self.manifest, self.folder)

    def _sequences(self, split: Literal["train", "validation"]) -> TokenSequences:
        data = self._config.data
        layout = data.sequence_length, data.respect_documents, data.packing
        return TokenSequences(self.manifest, self.folder, split, *layout)

    def _step_batches(self, step: int) -> Sequence[Batch]:
        train, samples = self._config.train, self._train.n_samples
        plan = plan_step(step, *self._part, train.global_batch, train.micro_batch, samples, train.seed)
        return [self._batch_on_device(micro.index, self._train.batch(micro.samples)) for micro in plan]

    def _batch_on_device(self, index: int, arrays: TokenBatch) -> Batch:
        device = self._ranks.device
        documents_bs = None if arrays.documents_bs is None else _to_device(arrays.documents_bs, device)
        return Batch(
            index=index,
            inputs=(_to_device(arrays.tokens_bs, device), _to_device(arrays.targets_bs, device), documents_bs),
            weight=int((arrays.targets_bs != IGNORED).sum()),
            device=device,
        )


def _to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """On a GPU through pinned memory, so that the copy does not wait for the stream."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor
    with torch.cuda.device(device):  # the current GPU is a thread's own: without this every rank would also use GPU 0
        return tensor.pin_memory().to(device, non_blocking=True)
