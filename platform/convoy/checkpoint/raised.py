"""What goes wrong in a store, as whoever scripts against `Checkpoints` sees it."""

import contextlib
from collections.abc import Iterator

from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import DamagedCommitError
from convoy.config.errors import ConfigError
from convoy.job.generations import CommitsLostError, GenerationLostError
from convoy.storage import StoreUnavailable


@contextlib.contextmanager
def as_checkpoint_errors() -> Iterator[None]:
    """A script needs one class."""
    try:
        yield
    except (ConfigError, DamagedCommitError, StoreUnavailable, CommitsLostError, GenerationLostError) as error:
        raise CheckpointError(str(error)) from error
