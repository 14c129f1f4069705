"""The reference: the same training as a bare torch loop in one process, without sharding and without our loop."""

import torch

from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.data.local_cache import ensure_local_data
from convoy.data.manifest import read_manifest
from convoy.data.sampler import epochs_and_samples
from convoy.data.sequences import TokenSequences
from convoy.model.init import initialise_weights
from convoy.model.transformer import Transformer
from convoy.storage import open_store
from convoy.training.optimizer import learning_rate
from tests.training.job import Job


def plain_training(job: Job, steps: int) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each step, over the whole global batch in one pass."""
    config = job.config
    assert isinstance(config.model, TransformerConfig)
    model = Transformer(config.model)
    initialise_weights(model, config.train.seed)
    optimizer = _adamw(model, config)
    sequences = _sequences(job)
    results = []
    for step in range(steps):
        first, count = step * config.train.global_batch, config.train.global_batch
        _, samples = epochs_and_samples(first, count, sequences.n_samples, config.train.seed)
        batch = sequences.batch(samples)
        tokens_bs, targets_bs = torch.from_numpy(batch.tokens_bs), torch.from_numpy(batch.targets_bs)
        loss = model(tokens_bs, targets_bs) / targets_bs.numel()
        optimizer.zero_grad()
        loss.backward()
        clip = config.train.clip_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config.train.steps, config.optimizer, config.schedule)
        optimizer.step()
        results.append((float(loss.detach()), float(norm)))
    return results


def _adamw(model: torch.nn.Module, config: RunConfig) -> torch.optim.AdamW:
    wanted = config.optimizer
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": wanted.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=wanted.lr, betas=wanted.betas, eps=wanted.eps)


def _sequences(job: Job) -> TokenSequences:
    store = open_store(job.root)
    manifest = read_manifest(store, job.data_id)
    assert manifest is not None
    folder = ensure_local_data(manifest, store, job.config.data)
    return TokenSequences(manifest, folder, "train", job.config.data.sequence_length)
