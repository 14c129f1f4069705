"""A job's data, made or found before its gang starts."""

from typing import NamedTuple

from convoy.config.data import DataConfig
from convoy.config.run import RunConfig
from convoy.data.manifest import PreparedData, check_vocabulary, data_fingerprint, json_digest
from convoy.data.prepare import prepare_dataset
from convoy.storage import Store


class JobData(NamedTuple):
    """The data of a job."""

    id: str
    """Of the prepared tokens; empty for a user's dataset, of which nothing is prepared."""
    fingerprint: str
    """What a job may never change about its data. 16 hex digits."""
    prepared: PreparedData | None


def prepare_job_data(config: RunConfig, store: Store) -> JobData:
    """Prepare the token shards, or find them. Raises ConfigError for input that cannot be used, StoreUnavailable."""
    if config.data.build is not None:
        return JobData("", dataset_fingerprint(config.data), None)
    manifest = prepare_dataset(config.data, store)
    check_vocabulary(manifest.vocab_size, config.model.vocab_size)
    return JobData(manifest.id, data_fingerprint(manifest, config.data), manifest)


def dataset_fingerprint(config: DataConfig) -> str:
    """Of a user's dataset: the function and its arguments. Ranks append the number of samples."""
    return json_digest({"build": config.build, "args": config.args})
