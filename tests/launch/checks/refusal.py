"""Why a run is refused, for tests of many configurations."""

from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.launch.checks.compatibility import check, check_budget


def refuse(config: RunConfig, datastore: str | None = None, local_gpus: int = 0) -> str | None:
    """In one line; None: nothing speaks against it."""
    try:
        check(config, datastore, local_gpus)
        check_budget(config)
    except ConfigError as error:
        return str(error)
    return None
