"""Whether a job may live on a store: asked before anything of the job is made there."""

from convoy.config.errors import ConfigError
from convoy.storage import Store, StoreUnfit


def check_fit(store: Store) -> None:
    """Raises ConfigError unless of two that create the same object only if absent, one is refused. Some small requests.

    Else two gangs would both form the next generation, and each take the other's checkpoints for its own.
    """
    try:
        store.prove()
    except StoreUnfit as error:
        raise ConfigError(f"{error}; no job can be kept there") from error
