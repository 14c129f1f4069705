"""The wish of a person that a job's run ends soon: `drain.json` in the job's root, written by `convoy drain`."""

from pydantic import BaseModel, ConfigDict, ValidationError

from convoy.storage import ObjectMissing, Store

DRAIN = "drain.json"


class Drain(BaseModel):
    """Of one run only: the job's next run is not concerned."""

    model_config = ConfigDict(frozen=True)

    run: str
    """Metaflow pathspec of the run that is to end."""
    now: bool
    """End on the last commit, rather than save first."""
    host: str
    """Where it was asked for."""
    requested: float
    """Unix time, by the clock of that host."""


class DrainUnreadableError(RuntimeError):
    """There is something in the place of a drain that is none."""


def request_drain(store: Store, drain: Drain) -> None:
    """Ask the run for it; a later wish takes the place of an earlier one. Raises StoreUnavailable."""
    store.write(DRAIN, drain.model_dump_json(indent=1).encode())


def read_drain(store: Store) -> Drain | None:
    """The newest wish. Raises StoreUnavailable, DrainUnreadableError."""
    try:
        data = store.read(DRAIN)
    except ObjectMissing:
        return None
    try:
        return Drain.model_validate_json(data)
    except ValidationError:
        raise DrainUnreadableError(f"{store.uri}/{DRAIN}: {len(data)} bytes that are not a drain") from None
