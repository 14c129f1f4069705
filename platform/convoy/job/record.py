"""A job's name, and the facts about it that never change."""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from convoy.config.base import UnixTime
from convoy.config.errors import ConfigError, yaml_value
from convoy.config.json_text import parse_json
from convoy.config.run import RunConfig, config_hash, with_param_dtype
from convoy.config.train import TrainConfig
from convoy.job.lineage import (
    CommitRef,
    config_digest,
    config_name,
    generation_name,
    generation_numbers,
    read_generation,
    read_history,
    reader_threads,
)
from convoy.storage import ObjectMissing, Store, StoreUnavailable, StoreUnfit, open_store
from convoy.storage.thread_map import in_parallel

RECORD = "JOB.json"
SCRIPT_DATA = "script"
"""Fingerprint in the record of a job whose data its script alone knows."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

MODEL_MARKER = "config.json"
"""Written last, and the first file that any reader of the folder asks for."""


class JobRecord(BaseModel):
    """`JOB.json`: created only if absent, by whoever starts the job first."""

    model_config = ConfigDict(frozen=True)

    job: str
    created: UnixTime
    """Unix time."""
    seed: int
    global_batch: int
    fingerprint: str
    """Of the data: files, tokenizer, sequence length, packing."""
    model: str
    """Name of the model, for people."""
    steps: int
    """Steps requested when the job began; meaningless for a script, whose end nobody else knows."""


def check_name(job: str) -> str:
    """The name, if it can be one. Raises ConfigError."""
    if not _NAME.fullmatch(job):
        raise ConfigError(f"job = {job}: must begin with a letter or digit and hold only letters, digits, . _ and -")
    return job


def job_uri(root: str, job: str) -> str:
    """Where the job's state lives."""
    return f"{root.rstrip('/')}/{check_name(job)}"


def job_store(root: str, job: str, config: RunConfig | None = None) -> Store:
    """The store of one job. config: how S3 is reached; None: by boto's own settings."""
    return open_store(job_uri(root, job), config.checkpoint.store if config else None)


def tier_uris(root: str, job: str, config: RunConfig) -> list[str]:
    """Where the job's checkpoints may lie: the root first, then the further shared tiers in order."""
    return [job_uri(place, job) for place in (root, *config.checkpoint.tiers)]


def tier_stores(root: str, job: str, config: RunConfig) -> list[Store]:
    """The stores of `tier_uris`."""
    return [open_store(uri, config.checkpoint.store) for uri in tier_uris(root, job, config)]


def read_record(store: Store) -> JobRecord | None:
    """The job's record; None if there is no such job yet."""
    try:
        return JobRecord.model_validate_json(store.read(RECORD))
    except ObjectMissing:
        return None


def target_steps(store: Store, config: Mapping[str, Any]) -> int | None:
    """Steps that the job is to take by a configuration that it ran with; None: not known, as of a script."""
    record = read_record(store)
    if record is None or record.fingerprint == SCRIPT_DATA:
        return None
    steps = config.get("train", {}).get("steps", record.steps)
    if not isinstance(steps, int):
        raise ConfigError(f"train.steps = {yaml_value(steps)} in the configuration of {store.uri}: must be an integer")
    return steps


def ensure_record(store: Store, job: str, config: RunConfig, fingerprint: str) -> JobRecord:
    """The job's record, made if absent. Raises ConfigError if this configuration is another job's, or if the store does
    not store what a job depends on."""
    if read_record(store) is None:
        check_store_fit(store)
    ours = JobRecord(
        job=job,
        created=time.time(),
        seed=config.train.seed,
        global_batch=config.train.global_batch,
        fingerprint=fingerprint,
        model=config.model.name,
        steps=config.train.steps,
    )
    if store.create(RECORD, ours.model_dump_json(indent=2).encode()):
        return ours
    return read_checked_record(store, config, fingerprint)


def read_checked_record(store: Store, config: RunConfig, fingerprint: str) -> JobRecord:
    """The record of a job that has one. Raises StoreUnavailable if it is gone: a folder where nothing is mounted
    looks like a job that never was. Raises ConfigError if this configuration is another job's.
    """
    record = read_record(store)
    if record is None:
        raise StoreUnavailable(f"{store.uri}/{RECORD} was there when the run began, and is gone: is it mounted here?")
    check_same_job(record, config, fingerprint)
    return record


def check_same_job(record: JobRecord, config: RunConfig, fingerprint: str | None = None) -> None:
    """Raises ConfigError if the configuration would change what must stay fixed. fingerprint None: not known yet."""
    fixed: list[tuple[str, object, object]] = [
        ("train.seed", config.train.seed, record.seed),
        ("train.global_batch", config.train.global_batch, record.global_batch),
    ]
    if fingerprint is not None and fingerprint != record.fingerprint:
        raise ConfigError(
            f"data: is other data (fingerprint {fingerprint}) than job {record.job} was started with "
            f"({record.fingerprint}); keep its corpus, tokenizer or data.build, or name a new job"
        )
    for key, value, was in fixed:
        if value != was:
            raise ConfigError(f"{key} = {value}: job {record.job} was started with {was}; keep that, or name a new job")


def existing_jobs(root: str, open_: Callable[[str], Store]) -> dict[str, Store]:
    """Stores of what may be jobs under a root, by name: folders that have a record, or generations without one.

    open_: opens the store at a URI.
    """
    names = [name for name in open_(root).top_folders() if _NAME.fullmatch(name)]
    stores = [open_(job_uri(root, name)) for name in names]
    are_jobs = in_parallel(lambda i: _is_job(stores[i]), len(names), reader_threads(root))
    return {name: store for name, store, is_job in zip(names, stores, are_jobs, strict=True) if is_job}


def _is_job(store: Store) -> bool:
    try:
        store.read(RECORD)
    except ObjectMissing:
        return bool(generation_numbers(store))
    except StoreUnavailable:  # of a root that could be listed: something is wrong with this job
        return True
    return True


def latest_start(store: Store) -> float:
    """When a gang of the job last formed, or the job was made, as Unix time. Raises ValueError for a damaged job."""
    record, numbers = read_record(store), generation_numbers(store)
    if record is None:
        raise ValueError(f"{store.uri}/{RECORD} is missing")
    if not numbers:
        return record.created
    return read_generation(store, generation_name(numbers[-1])).created


def keep_config(store: Store, config: RunConfig) -> str:
    """Keep the configuration a generation runs with, once for all that share it; returns its hash."""
    digest = config_hash(config)
    store.create(config_name(digest), config.model_dump_json(indent=1).encode())
    return digest


def read_config(store: Store, digest: str) -> dict[str, Any]:
    """The configuration with this hash, as plain data. Raises ObjectMissing, and ConfigError if it is damaged."""
    name = config_name(digest)
    try:
        config = parse_json(store.read(name))
    except ValueError as error:
        raise ConfigError(f"{store.uri}/{name}: is not JSON: {error}") from None
    if not isinstance(config, dict) or not all(
        isinstance(each, dict) for key, each in config.items() if key not in ("root", "trackers")
    ):
        raise ConfigError(f"{store.uri}/{name}: is not a configuration")
    return config


def check_store_fit(store: Store) -> None:
    """Raises ConfigError unless of two that create the same object only if absent, one is refused. Some small requests.

    Else two gangs would both form the next generation, and each take the other's checkpoints for its own.
    """
    try:
        store.prove()
    except StoreUnfit as error:
        raise ConfigError(f"{error}; no job can be stored there") from error


def model_prefix(ref: CommitRef) -> str:
    """Prefix of the model's object names."""
    return f"model/{ref.generation:06d}-{ref.step:09d}/"


def is_exported(store: Store, ref: CommitRef) -> bool:
    """Whether the commit's model is there, whole."""
    return model_prefix(ref) + MODEL_MARKER in store.sizes(model_prefix(ref))


def with_recorded_dtype(config: RunConfig, store: Store, ran_with: str | None = None) -> RunConfig:
    """The configuration with the type of an earlier generation where it says `auto`, so that a resumed job never
    changes its type; unchanged while the job has no generation.

    ran_with: hash of that generation's configuration; None: the newest one's. Raises StoreUnavailable, and ConfigError
    if it is gone.
    """
    if config.train.param_dtype != "auto":
        return config
    ran_with = ran_with or config_digest(read_history(store))
    if not ran_with:
        return config
    try:
        recorded = read_config(store, ran_with)
    except ObjectMissing:
        lost = f"{store.uri} no longer has the configuration that names the job's type"
        raise ConfigError(f"train.param_dtype = auto: {lost}; set bf16 or fp32") from None
    train = TrainConfig.model_validate({"param_dtype": recorded["train"]["param_dtype"]})
    return config if train.param_dtype == "auto" else with_param_dtype(config, train.param_dtype)
