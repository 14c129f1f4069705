"""That a commit is of the model that it is to fill."""

from collections.abc import Mapping, Sequence

from convoy.checkpoint.format import Commit
from convoy.config.errors import ConfigError

PREFIX = "model."
"""Of the weights' names in a commit."""


def check_same_model(commit: Commit, wanted: Mapping[str, Sequence[int]]) -> None:
    """Raises ConfigError unless the model has the tensors that were saved, no more, no fewer, of the same shapes.

    wanted: global shape of each tensor of the model to be filled, by name.
    """
    saved = {name.removeprefix(PREFIX): i.shape for name, i in commit.tensors.items() if name.startswith(PREFIX)}
    for name in [*wanted, *(name for name in saved if name not in wanted)]:
        own, there = wanted.get(name), saved.get(name)
        if there is None or own is None or list(own) != list(there):
            raise ConfigError(
                f"model: {name} is {_shape(own)} in this configuration, and {_shape(there)} in the checkpoint of step "
                f"{commit.step}; keep the model of the job, or name a new job"
            )


def _shape(shape: Sequence[int] | None) -> str:
    return "absent" if shape is None else str(tuple(shape))
