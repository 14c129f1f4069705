"""Where the `convoy` command finds a job, and how it reaches S3: the options for it, and the stores they open."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from convoy.job.lineage import History
    from convoy.storage import Store


def _url(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.startswith(("http://", "https://")):
        from convoy.config.errors import ConfigError

        raise ConfigError(f"--endpoint-url {value}: must be a URL, such as https://s3.example.com")
    return value


ROOT = click.option(
    "--root", default=None, help="Where jobs live. Default: $CONVOY_ROOT, or the nearest .convoy folder."
)

ENDPOINT = click.option(
    "--endpoint-url",
    envvar=["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"],
    default=None,
    callback=_url,
    help="Of an S3-compatible store. Default: $AWS_ENDPOINT_URL, or as the job was configured, or AWS.",
)


def root_of(root: str | None) -> str:
    """Where jobs live."""
    from convoy.config.loader import default_root

    return root or default_root()


def existing_job(root: str | None, job: str, endpoint_url: str | None) -> "Store":
    """The job's store. Raises ConfigError if there is no such job."""
    from convoy.config.errors import ConfigError, nearest
    from convoy.job.record import job_uri, read_record

    where = root_of(root)
    store = store_at(job_uri(where, job), endpoint_url)
    try:
        record = read_record(store)
    except ValueError:
        raise ConfigError(f"job = {job}: {store.uri}/JOB.json is damaged: it is not the record of a job") from None
    if record is None:
        names = sorted(jobs_under(root, endpoint_url))
        raise ConfigError(f"job = {job}: no such job under {where}" + (f"; {nearest(job, names)}" if names else ""))
    return store


def jobs_under(root: str | None, endpoint_url: str | None) -> "dict[str, Store]":
    """The stores of all jobs, by name."""
    from convoy.job.record import existing_jobs

    return existing_jobs(root_of(root), lambda uri: store_at(uri, endpoint_url))


def named_or_newest(root: str | None, job: str | None, endpoint_url: str | None) -> str:
    """The job that was named, or else the one that started last, whose name goes to stderr.

    Raises ConfigError if there is none.
    """
    if job is not None:
        return job
    from convoy.config.errors import ConfigError
    from convoy.job.record import latest_start
    from convoy.storage import StoreUnavailable

    starts: dict[str, float] = {}
    for name, store in jobs_under(root, endpoint_url).items():
        with contextlib.suppress(ValueError, StoreUnavailable):  # of a damaged job
            starts[name] = latest_start(store)
    if not starts:
        raise ConfigError(f"JOB: there is no job under {root_of(root)}")
    newest = max(starts, key=lambda name: starts[name])
    click.echo(f"convoy: job {newest}, the newest one under {root_of(root)}", err=True)
    return newest


def store_at(uri: str, endpoint_url: str | None) -> "Store":
    """A store to read from."""
    from convoy.config.checkpoint import StoreConfig
    from convoy.storage import open_store

    return open_store(uri, StoreConfig(endpoint_url=endpoint_url))


def stores_of_job(uris: Sequence[str], endpoint_url: str | None) -> "list[Store]":
    """The stores of one job to write to: encrypted and of the storage class that the job was configured with.

    The first that knows the configuration tells it for all; a further tier has none, and bare ones know nothing.
    """
    from convoy.config.checkpoint import StoreConfig
    from convoy.job.lineage import read_history
    from convoy.storage import open_store

    plain = [store_at(uri, endpoint_url) for uri in uris]
    for store in plain:
        configured = configuration(store, read_history(store))
        if configured:
            how = reached(configured, endpoint_url).get("checkpoint", {}).get("store", {})
            return [open_store(uri, StoreConfig.model_validate(how)) for uri in uris]
    return plain


def configuration(store: "Store", history: "History") -> dict[str, Any]:
    """What the job ran with last; empty where this is not kept, as on a further tier or outside a flow."""
    from convoy.job.lineage import newest_config
    from convoy.job.record import read_config
    from convoy.storage import ObjectMissing

    ran_with = newest_config(history)
    if ran_with is not None:
        with contextlib.suppress(ObjectMissing):
            return read_config(store, ran_with)
    return {}


def reached(configured: dict[str, Any], endpoint_url: str | None) -> dict[str, Any]:
    """The configuration, but that an endpoint which was given to the command is used."""
    if endpoint_url is None or not configured:
        return configured
    checkpoint = configured.get("checkpoint", {})
    store = {**checkpoint.get("store", {}), "endpoint_url": endpoint_url}
    return {**configured, "checkpoint": {**checkpoint, "store": store}}
