"""Batches from a user's stream, an IterableDataset that knows its position. Each data rank has a stream of its own."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.group import all_gather_objects
from convoy.checkpoint.state.values import encode
from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.data.sampler import plan_step
from convoy.training.batch import Batch
from convoy.training.datasets import LoadedBatches, Pass, UserSamples, even_passes
from convoy.training.process_groups import Ranks


class StreamSamples(UserSamples):
    """The next samples of this rank's stream in each step; a stream that ends begins again. Its position is in each
    checkpoint."""

    has_position = True

    def __init__(
        self,
        config: RunConfig,
        fingerprint: str,
        ranks: Ranks,
        validation: Dataset[Any] | None,
        held_out: int,
        train: IterableDataset[Any],
    ) -> None:
        super().__init__(config, fingerprint, ranks, validation, held_out)
        self._train = _CopiedState(train)
        self._loader: StatefulDataLoader[Any] = StatefulDataLoader(
            self._train,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=config.data.workers,
            generator=torch.Generator(),  # or the loader would draw from the one that keys the model's randomness
            # A position between two of these is found again by reading samples once more.
            snapshot_every_n_steps=sum(each.rows for each in self._plan(0)) or 1,
        )

    def position(self) -> dict[str, Any]:
        state = self._loader.state_dict()
        try:
            encode(state, "state_dict()")
        except CheckpointError as error:
            raise ConfigError(f"{self._of}: the stream's {error}; keep numbers, text, lists and dicts there") from None
        return {"workers": self._config.data.workers, "streams": all_gather_objects(state, self._ranks.saving)}

    def restore_position(self, position: Mapping[str, Any]) -> None:
        rank, ranks = self._part
        workers, states = self._config.data.workers, position["streams"]
        if (len(states), position["workers"]) != (ranks, workers):
            raise ConfigError(
                f"{self._of}: the checkpoint has the position of {len(states)} streams with data.workers = "
                f"{position['workers']}, and this run has {ranks} ranks with {workers}: must be the same; only a "
                "Dataset with __getitem__ and __len__ continues on any ranks"
            )
        self._loader.load_state_dict(states[rank])

    def prefetch_from(self, first_step: int) -> LoadedBatches:
        """As `TrainingData.prefetch_from`; with `data.workers`, processes read two samples each ahead."""
        return LoadedBatches(self._steps_from(first_step))

    def _steps_from(self, first_step: int) -> Generator[Sequence[Batch], None, None]:
        samples = self._samples()
        for step in range(first_step, self._config.train.steps):
            plan = self._plan(step)
            own = list(islice(samples, sum(each.rows for each in plan)))
            yield [self._make_batch(each.index, each.rows, self._collate(part)) for each, part in _parts(plan, own)]

    def _samples(self) -> Iterator[Any]:
        """One epoch of the stream after the other. Nothing may be left of the first one: it may have been restored."""
        empty_epochs = 0
        while empty_epochs < 2:
            empty_epochs += 1
            for sample in self._loader:
                empty_epochs = 0
                yield sample
        raise ConfigError(self._empty_text)

    def example(self) -> tuple[Any, int]:
        """The first samples of this stream, which is then set back."""
        before = self._train.state_dict()
        samples = list(islice(self._train, 2))
        self._train.load_state_dict(before)
        if not samples:
            raise ConfigError(self._empty_text)
        return self._collate(samples), len(samples)

    def _plan(self, step: int) -> list[Pass]:
        """The passes of a step and their rows; which samples these are is up to the stream."""
        train = self._config.train
        return even_passes(plan_step(step, *self._part, train.global_batch, train.micro_batch, train.global_batch, 0))

    @property
    def _empty_text(self) -> str:
        return f"{self._of}: returned a stream without samples on rank {self._ranks.place.rank}"

    @property
    def _of(self) -> str:
        return f"data.build = {self._config.data.build}"


class _CopiedState(IterableDataset[Any]):
    """A stream whose states are copies. Workers of torchdata send only what differs from the previous state: nothing,
    if a stream returns the same dict each time. Its iterator is a generator, which has no state: if a stream is its own
    iterator, torchdata would save and load that as well, without a copy."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Any]:
        yield from self._stream

    def state_dict(self) -> Any:
        return deepcopy(self._stream.state_dict())

    def load_state_dict(self, state: Any) -> None:
        self._stream.load_state_dict(deepcopy(state))


def _as_it_is(sample: Any) -> Any:
    return sample


def _parts(plan: Sequence[Pass], samples: list[Any]) -> Iterator[tuple[Pass, list[Any]]]:
    """Each pass with its samples; one without any has the first again, which does not count."""
    begin = 0
    for each in plan:
        yield each, samples[begin : begin + each.rows] or samples[:1]
        begin += each.rows
