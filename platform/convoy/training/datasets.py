"""Batches from a user's own dataset: each sample once an epoch, in the order of Convoy's sampler."""

import hashlib
import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from convoy.checkpoint.group import all_gather_objects
from convoy.config.errors import ConfigError
from convoy.config.functions import check_arguments, import_function
from convoy.config.run import RunConfig
from convoy.data.sampler import PADDING, MicroBatch, plan_step
from convoy.data.sequences import validation_samples
from convoy.parallel.mesh import data_rank_and_size
from convoy.training.batch import Batch
from convoy.training.data import TrainingData
from convoy.training.process_groups import Ranks

Key = tuple[int, int]
"""Epoch and index of a sample."""


@dataclass(frozen=True)
class Pass:
    """The samples of one forward and backward pass of one rank."""

    index: int
    """Place among all micro batches of the step, over all ranks."""
    keys: list[Key]
    rows: int
    """Of them, those that have weight: all, or none."""


class DatasetSamples(TrainingData):
    """The datasets that `data.build` returns, as one rank sees them."""

    def __init__(self, config: RunConfig, fingerprint: str, ranks: Ranks) -> None:
        """All ranks call it. fingerprint: of the function and its arguments. Raises ConfigError for what is no dataset
        of samples that can be counted, or not the same on all ranks."""
        self._config = config
        self._ranks = ranks
        self._part = data_rank_and_size(ranks.mesh)
        self._train = build_dataset(config, "train")
        self._validation = build_dataset(config, "validation")
        if self._train is None:
            raise ConfigError(f"data.build = {config.data.build}: returned None for train: must be a Dataset")
        self._size = dataset_size(config, "train", self._train)
        self._held_out = 0 if self._validation is None else dataset_size(config, "validation", self._validation)
        self._check_same_on_all_ranks()
        self.fingerprint, self.data_id = f"{fingerprint}-{self._size}", ""
        self._collate = default_collate
        if config.data.collate is not None:
            self._collate = import_function("data.collate", config.data.collate)

    def _check_same_on_all_ranks(self) -> None:
        sizes = all_gather_objects((self._size, self._held_out), self._ranks.saving)
        other = next((rank for rank, size in enumerate(sizes) if size != sizes[0]), None)
        if other is not None:
            raise ConfigError(
                f"data.build = {self._config.data.build}: returned {sizes[0][0]} samples to train on and {sizes[0][1]} "
                f"held out on rank 0, and {sizes[other][0]} and {sizes[other][1]} on rank {other}: must be the same"
            )

    def prefetch_from(self, first_step: int) -> "LoadedBatches":
        """As `TrainingData.prefetch_from`; with `data.workers`, processes read two batches each ahead."""
        return LoadedBatches(self._steps_from(first_step))

    def _steps_from(self, first_step: int) -> Generator[Sequence[Batch], None, None]:
        config, steps = self._config, range(first_step, self._config.train.steps)
        assert self._train is not None
        loader = DataLoader(
            KeyedSamples(self._train, config.train.seed),
            batch_sampler=_StepKeys(steps, self._plan),
            collate_fn=self._collate,
            num_workers=config.data.workers,
            generator=torch.Generator(),  # or the loader would draw from the one that keys the model's randomness
        )
        read = iter(loader)
        for step in steps:
            yield [self._make_batch(each.index, each.rows, next(read)) for each in self._plan(step)]

    def validation_batches(self) -> list[Batch]:
        if self._validation is None:
            return []
        train, count = self._config.train, self._config.evaluation.sequences
        samples = KeyedSamples(self._validation, train.seed)
        batches = []
        for ids in validation_samples(self._held_out, count, *self._part, train.micro_batch):
            keys = [(0, int(i)) for i in ids if i != PADDING]
            made = self._collate(samples.__getitems__(keys or [(0, 0)]))
            batches.append(self._make_batch(0, len(keys), made))
        return batches

    def example(self) -> tuple[Any, int]:
        assert self._train is not None
        samples = KeyedSamples(self._train, self._config.train.seed)
        keys = [(0, 0), (0, self._size - 1)]  # two, since batch normalisation refuses one
        return self._collate(samples.__getitems__(keys)), len(keys)

    def _plan(self, step: int) -> list[Pass]:
        train = self._config.train
        sizes = train.global_batch, train.micro_batch, self._size
        return even_passes(plan_step(step, *self._part, *sizes, train.seed))

    def _make_batch(self, index: int, rows: int, made: Any) -> Batch:
        """rows: samples in it; 0: it is padding. made: what the samples were collated to."""
        has_tensors = any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(made))
        if not has_tensors or not isinstance(made, Mapping | tuple | list):
            name = self._config.data.collate or "torch's default_collate"
            raise ConfigError(
                f"data.collate = {name}: returned a {type(made).__name__}: must return a dict or a tuple with tensors"
            )
        device = self._ranks.device
        return Batch(index, (tree_map_only(torch.Tensor, self._to_device, made), rows), rows, device)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        device = self._ranks.device
        return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


class LoadedBatches:
    """A rank's micro batches of one step after the other, from a DataLoader whose processes end with it."""

    def __init__(self, steps: Generator[Sequence[Batch], None, None]) -> None:
        self._steps = steps

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Sequence[Batch]:
        return next(self._steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes. May be called twice."""
        self._steps.close()


class KeyedSamples(Dataset[Any]):
    """A dataset whose samples' randomness is keyed by seed, epoch and index: which rank or process reads them makes no
    difference."""

    def __init__(self, dataset: Dataset[Any], seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitem__(self, key: Key) -> Any:
        epoch, index = key
        digest = hashlib.blake2b(f"sample {self._seed} {epoch} {index}".encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "big")
        torch.default_generator.manual_seed(number >> 1)
        random.seed(number)
        np.random.seed(number >> 32)
        return self._dataset[index]

    def __getitems__(self, keys: Sequence[Key]) -> list[Any]:
        return [self[key] for key in keys]


class _StepKeys:
    """The keys of each pass of each step, in turn."""

    def __init__(self, steps: range, plan: Callable[[int], list[Pass]]) -> None:
        self._steps = steps
        self._plan = plan

    def __iter__(self) -> Iterator[list[Key]]:
        return (each.keys for step in self._steps for each in self._plan(step))


def even_passes(micro_batches: Sequence[MicroBatch]) -> list[Pass]:
    """A rank's samples of a step in as many passes, whose sizes differ by at most one: a last pass of a single sample
    would be one that batch normalisation refuses."""
    rows = [pair for micro in micro_batches for pair in zip(micro.epochs.tolist(), micro.samples.tolist(), strict=True)]
    keys = [(epoch, sample) for epoch, sample in rows if sample != PADDING]
    passes, begin = [], 0
    for number, micro in enumerate(micro_batches):
        end = -(-len(keys) * (number + 1) // len(micro_batches))
        own = keys[begin:end]
        # With fewer samples than passes, the first sample again, of no weight: all ranks run equally many passes.
        passes.append(Pass(micro.index, own or keys[:1], len(own)))
        begin = end
    return passes


def build_dataset(config: RunConfig, split: str) -> Dataset[Any] | None:
    """What `data.build` returns for this split. Raises ConfigError for what is neither a dataset nor None."""
    data = config.data
    assert data.build is not None
    build = import_function("data.build", data.build)
    check_arguments("data.args", data.build, build, data.args, before=[split])
    dataset = build(split, **data.args)
    if isinstance(dataset, IterableDataset) or not (dataset is None or hasattr(dataset, "__getitem__")):
        raise ConfigError(
            f"data.build = {data.build}: returned a {type(dataset).__name__} for {split}: must be a Dataset with "
            "__getitem__ and __len__, of which a restart knows which samples were used"
        )
    return dataset


def dataset_size(config: RunConfig, split: str, dataset: Any) -> int:
    """Number of samples. Raises ConfigError if that is not known, or 0."""
    try:
        size = len(dataset)
    except (TypeError, NotImplementedError):
        raise ConfigError(
            f"data.build = {config.data.build}: returned a {type(dataset).__name__} for {split} without __len__: each "
            "sample is used once an epoch, which takes their number"
        ) from None
    if size < 1:
        raise ConfigError(f"data.build = {config.data.build}: returned no samples for {split}")
    return size
