"""What a job trains on and evaluates with, as one rank sees it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import torch

from convoy.config.run import RunConfig
from convoy.data.tokenizer import TextTokenizer
from convoy.training.batch import Batch
from convoy.training.process_groups import Ranks

DATA_STATE_KEY = "data"
"""Key in a checkpoint of the data's position, if the step count does not determine it."""


class StepBatches(Protocol):
    """A rank's micro batches of one step after the other; nothing of it runs on once it is closed or left."""

    def __iter__(self) -> Self: ...

    def __next__(self) -> Sequence[Batch]: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...


class TrainingData(ABC):
    """Prepared tokens, or the samples of a user's dataset."""

    fingerprint: str
    """Of the data: a checkpoint of other data is refused."""
    data_id: str
    """Of the prepared tokens; empty for a user's dataset."""

    has_position: bool = False
    """Whether `prefetch_from` continues from a position in the checkpoint; else the number of steps is enough."""

    def position(self) -> dict[str, Any]:
        """Plain values of a checkpoint: where all ranks are after the last step whose batches were taken. All ranks
        call it. Only if `has_position`."""
        return {}

    def restore_position(self, position: Mapping[str, Any]) -> None:
        """Have `prefetch_from` continue there. Raises ConfigError, on all ranks, if that is not possible."""
        assert not position, "only data with a position restores one"

    @abstractmethod
    def prefetch_from(self, first_step: int) -> StepBatches:
        """This rank's micro batches of every step from `first_step` on, equally many on all ranks."""

    @abstractmethod
    def validation_batches(self) -> list[Batch]:
        """This rank's part of the held-out data, the same each time; equally many batches on all ranks. Empty where
        nothing is held out."""

    def example(self) -> tuple[Any, int] | None:
        """A batch of a user's dataset, and its rows; None for tokens."""
        return None

    def token_bytes_v(self) -> torch.Tensor | None:
        """UTF-8 bytes of each id (V,); None where samples are no tokens, or tokens have no exact bytes."""
        return None

    def tokenizer(self) -> TextTokenizer | None:
        """The tokenizer; None where samples have no text."""
        return None


def open_data(config: RunConfig, root: str, data_id: str, fingerprint: str, ranks: Ranks) -> TrainingData:
    """The data of a job. All ranks call it. root, data_id: where prepared tokens are. fingerprint: as prepared.

    Raises ConfigError if the data does not fit the configuration, DataDamaged if it is not what was prepared.
    """
    if config.data.build is not None:
        from convoy.training.datasets import open_dataset

        return open_dataset(config, fingerprint, ranks)
    from convoy.training.batches import RankData

    return RankData(config, root, data_id, fingerprint, ranks)
