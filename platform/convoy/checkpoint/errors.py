"""Errors of saves and restores. No torch here: whoever only handles them need not import it."""

import contextlib
from collections.abc import Iterator

from convoy.checkpoint.format import DamagedCommitError
from convoy.config.errors import ConfigError
from convoy.job.generations import CommitsLostError, GenerationLostError
from convoy.storage import StoreUnavailable


class CheckpointError(RuntimeError):
    """A checkpoint was not saved, or none could be restored; the text is one line."""


@contextlib.contextmanager
def as_checkpoint_errors() -> Iterator[None]:
    """Raise what goes wrong in a store as CheckpointError: a script needs one class."""
    try:
        yield
    except (ConfigError, DamagedCommitError, StoreUnavailable, CommitsLostError, GenerationLostError) as error:
        raise CheckpointError(str(error)) from error
