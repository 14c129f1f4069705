"""Batches from a user's own dataset: each sample once an epoch, in the order of Convoy's sampler."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Self

import torch
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from convoy.checkpoint.group import all_gather_objects
from convoy.config.errors import ConfigError, PrerequisiteMissing, missing_extra
from convoy.config.functions import check_arguments, import_function
from convoy.config.run import RunConfig
from convoy.data.sampler import PADDING, MicroBatch, plan_step
from convoy.data.sequences import validation_samples
from convoy.parallel.mesh import data_rank_and_size
from convoy.training.batch import Batch
from convoy.training.data import TrainingData
from convoy.training.process_groups import Ranks
from convoy.training.randomness import seed_generators

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


def open_dataset(config: RunConfig, fingerprint: str, ranks: Ranks) -> TrainingData:
    """The datasets that `data.build` returns. All ranks call it. fingerprint: of the function and its arguments.

    Raises ConfigError, on all ranks, for datasets that are not the same on all of them, or if the function returns
    something other than a dataset.
    """
    train, validation = build_dataset(config, "train"), build_dataset(config, "validation")
    if train is None:
        raise ConfigError(f"data.build = {config.data.build}: returned None for train: must be a Dataset")
    stream = train if isinstance(train, IterableDataset) else None
    size = None if stream is not None else dataset_size(config, "train", train)
    held_out = 0 if validation is None else dataset_size(config, "validation", validation)
    _check_same_on_all_ranks(config, size, held_out, ranks)
    if stream is not None:
        from convoy.training.streams import StreamSamples

        return StreamSamples(config, f"{fingerprint}-stream", ranks, validation, held_out, stream)
    assert size is not None
    return DatasetSamples(config, f"{fingerprint}-{size}", ranks, validation, held_out, train, size)


def _check_same_on_all_ranks(config: RunConfig, size: int | None, held_out: int, ranks: Ranks) -> None:
    sizes = all_gather_objects((size, held_out), ranks.saving)
    other = next((rank for rank, own in enumerate(sizes) if own != sizes[0]), None)
    if other is not None:
        first, there = ("a stream" if own is None else f"{own} samples" for own, _ in (sizes[0], sizes[other]))
        raise ConfigError(
            f"data.build = {config.data.build}: returned {first} to train on and {sizes[0][1]} held out on rank 0, and "
            f"{there} and {sizes[other][1]} on rank {other}: must be the same"
        )


class UserSamples(TrainingData):
    """Samples of a user's dataset as batches: what map-style datasets and streams have in common."""

    def __init__(
        self, config: RunConfig, fingerprint: str, ranks: Ranks, validation: Dataset[Any] | None, held_out: int
    ) -> None:
        """fingerprint: as `TrainingData` has it. validation: None: nothing is held out. held_out: its samples."""
        self.fingerprint, self.data_id = fingerprint, ""
        self._config = config
        self._ranks = ranks
        self._part = data_rank_and_size(ranks.mesh)
        self._validation = validation
        self._held_out = held_out
        self._collate = default_collate
        if config.data.collate is not None:
            self._collate = import_function("data.collate", config.data.collate)

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


class DatasetSamples(UserSamples):
    """Of a map-style dataset: each sample once an epoch, in the order of Convoy's sampler."""

    def __init__(
        self,
        config: RunConfig,
        fingerprint: str,
        ranks: Ranks,
        validation: Dataset[Any] | None,
        held_out: int,
        train: Dataset[Any],
        size: int,
    ) -> None:
        super().__init__(config, fingerprint, ranks, validation, held_out)
        self._train = train
        self._size = size

    def prefetch_from(self, first_step: int) -> "LoadedBatches":
        """As `TrainingData.prefetch_from`; with `data.workers`, processes read two batches each ahead."""
        return LoadedBatches(self._steps_from(first_step))

    def _steps_from(self, first_step: int) -> Generator[Sequence[Batch], None, None]:
        config, steps = self._config, range(first_step, self._config.train.steps)
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

    def example(self) -> tuple[Any, int]:
        samples = KeyedSamples(self._train, self._config.train.seed)
        keys = [(0, 0), (0, self._size - 1)]  # two, since batch normalisation refuses one
        return self._collate(samples.__getitems__(keys)), len(keys)

    def _plan(self, step: int) -> list[Pass]:
        train = self._config.train
        sizes = train.global_batch, train.micro_batch, self._size
        return even_passes(plan_step(step, *self._part, *sizes, train.seed))


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
        seed_generators(f"sample {self._seed} {epoch} {index}", python=True)
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
    if isinstance(dataset, IterableDataset):
        _check_stream(data.build, split, dataset)
    elif not (dataset is None or hasattr(dataset, "__getitem__")):
        raise ConfigError(
            f"data.build = {data.build}: returned a {type(dataset).__name__} for {split}: must be a Dataset with "
            "__getitem__ and __len__, or for train an IterableDataset"
        )
    return dataset


def _check_stream(build: str, split: str, dataset: IterableDataset[Any]) -> None:
    returned = f"data.build = {build}: returned a {type(dataset).__name__} for {split}"
    if split != "train":
        raise ConfigError(
            f"{returned}: must be a Dataset with __getitem__ and __len__, or None: held-out samples are the same in "
            "each evaluation"
        )
    if not (hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")):
        raise ConfigError(
            f"{returned}, without state_dict and load_state_dict, so a restart could not continue where it was; a "
            "Dataset with __getitem__ and __len__ needs neither"
        )
    if find_spec("torchdata") is None:
        raise PrerequisiteMissing(f"{returned}: {missing_extra('torchdata', 'streams')}")


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
