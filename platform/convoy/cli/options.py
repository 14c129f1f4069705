"""Where the `convoy` command finds a job, and how it reaches S3: the options for it, and the stores they open."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
from pydantic import BaseModel
from rich.console import Console

from convoy.config.checkpoint import StoreConfig
from convoy.config.errors import ConfigError, name_hint
from convoy.config.loader import default_root
from convoy.display.page import Page
from convoy.display.terminal import show
from convoy.job.events.log import read_events
from convoy.job.events.registry import Event
from convoy.job.lineage import History, config_digest, read_history
from convoy.job.record import existing_jobs, job_uri, latest_start, read_config, read_record
from convoy.storage import ObjectMissing, Store, StoreUnavailable, open_store


def _check_url(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.startswith(("http://", "https://")):
        raise ConfigError(f"--endpoint-url {value}: must be a URL, such as https://s3.example.com")
    return value


ROOT = click.option(
    "--root", default=None, help="Where jobs live. Default: $CONVOY_ROOT, or the nearest .convoy folder."
)

ENDPOINT = click.option(
    "--endpoint-url",
    envvar=["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"],
    default=None,
    callback=_check_url,
    help="URL of an S3-compatible store. Default: $AWS_ENDPOINT_URL, or as the job was configured, or AWS.",
)

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@dataclass(frozen=True)
class Jobs:
    """The jobs under a root."""

    root: str
    endpoint_url: str | None
    """The endpoint of the S3-compatible store that the command names, if any."""

    def stores(self) -> dict[str, Store]:
        """The stores of all jobs, by name."""
        return existing_jobs(self.root, lambda uri: store_at(uri, self.endpoint_url))

    def store(self, job: str) -> Store:
        """The job's store. Raises ConfigError if there is no such job."""
        store = store_at(job_uri(self.root, job), self.endpoint_url)
        try:
            record = read_record(store)
        except ValueError:
            raise ConfigError(f"job = {job}: {store.uri}/JOB.json is damaged: it is not the record of a job") from None
        if record is None:
            names = sorted(self.stores())
            hint = f"; {name_hint(job, names)}" if names else ""
            raise ConfigError(f"job = {job}: no such job under {self.root}{hint}")
        return store

    def named_or_newest(self, job: str | None) -> str:
        """The job that was named, or else the one that started last, whose name goes to stderr.

        Raises ConfigError if there is none.
        """
        if job is not None:
            return job
        starts: dict[str, float] = {}
        for name, store in self.stores().items():
            with contextlib.suppress(ValueError, StoreUnavailable):  # of a damaged job
                starts[name] = latest_start(store)
        if not starts:
            raise ConfigError(f"JOB: there is no job under {self.root}")
        newest = max(starts, key=lambda name: starts[name])
        click.echo(f"convoy: job {newest}, the newest one under {self.root}", err=True)
        return newest

    def read(self, job: str) -> tuple[Store, list[Event], dict[str, Any]]:
        """The job's store, its log, and the configuration it ran with last. Raises ConfigError if there is none."""
        store = self.store(job)
        return store, read_events(store), newest_configuration(store, read_history(store))


def with_jobs(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that adds --root and --endpoint-url, and passes them as `jobs`."""

    @ROOT
    @ENDPOINT
    @functools.wraps(command)
    def wrapper(root: str | None, endpoint_url: str | None, **others: Any) -> Any:
        return command(jobs=Jobs(root or default_root(), endpoint_url), **others)

    return wrapper


def print_result(result: BaseModel, page: Page, as_json: bool) -> None:
    """Print a result as JSON, or as its page."""
    if as_json:
        click.echo(result.model_dump_json(indent=1))
    else:
        show(page, Console())


def store_at(uri: str, endpoint_url: str | None) -> Store:
    """A store to read from."""
    return open_store(uri, StoreConfig(endpoint_url=endpoint_url))


def configured_stores(uris: Sequence[str], endpoint_url: str | None) -> list[Store]:
    """The stores of one job to write to: encrypted and of the storage class that the job was configured with.

    The first that has the configuration decides for all: a further tier has none.
    """
    plain = [store_at(uri, endpoint_url) for uri in uris]
    for store in plain:
        configured = newest_configuration(store, read_history(store))
        if configured:
            options = with_endpoint(configured, endpoint_url).get("checkpoint", {}).get("store", {})
            return [open_store(uri, StoreConfig.model_validate(options)) for uri in uris]
    return plain


def newest_configuration(store: Store, history: History) -> dict[str, Any]:
    """What the job ran with last; empty where this is not stored, as on a further tier or outside a flow."""
    ran_with = config_digest(history)
    if ran_with is not None:
        with contextlib.suppress(ObjectMissing):
            return read_config(store, ran_with)
    return {}


def with_endpoint(configured: dict[str, Any], endpoint_url: str | None) -> dict[str, Any]:
    """The configuration, with the endpoint that the command names."""
    if endpoint_url is None or not configured:
        return configured
    checkpoint = configured.get("checkpoint", {})
    store = {**checkpoint.get("store", {}), "endpoint_url": endpoint_url}
    return {**configured, "checkpoint": {**checkpoint, "store": store}}
