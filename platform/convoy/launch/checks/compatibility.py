"""What works where: refuses, before anything starts, a run that cannot work, and places for its files that cannot
exist, or that its machines do not see. Pure."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from convoy.catalog.instances import instance, instance_names
from convoy.catalog.prices import SHIPPED
from convoy.config import errors
from convoy.config.checkpoint import StoreConfig
from convoy.config.cluster import check_backend
from convoy.config.data import DatasetCorpus, FilesCorpus, ShardsCorpus
from convoy.config.engine import check_engine_offload
from convoy.config.errors import ConfigError, PrerequisiteMissing, yaml_value
from convoy.config.run import RunConfig, World, check_ranks
from convoy.launch.checks.memory import check_host_memory, check_machine_memory
from convoy.launch.pricing import instance_price
from convoy.storage.uri import is_shared, shared_stores

KUBERNETES_ONLY = ("service_account", "namespace", "node_selector", "tolerations", "persistent_volume_claims")
BATCH_ONLY = ("queue", "iam_role", "host_volumes")
MIN_TIME_LIMIT_SECONDS = 60
"""Metaflow refuses less on AWS Batch and Kubernetes."""

PLACEHOLDER = "YOUR-BUCKET"
"""Stands in the presets for the name of the user's bucket."""

Json = Mapping[str, Any]

Demand = Callable[[], None]

_BUCKETS = {
    "s3": (re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"), "dots and hyphens"),
    "gs": (re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]"), "dots, hyphens and underscores"),
}

_DATA_MAY_CHANGE = {"data.cache", "data.corpus.path", "data.corpus.suffixes"}
"""Where the same content lies."""

_TOKENIZER_MAY_CHANGE = {"data.tokenizer.path", "data.tokenizer.eos_token"}
"""The same file elsewhere, or its default end of document spelled out."""

_MODEL_MAY_CHANGE = {f"model.{key}" for key in ("name", "init_from", "init_std", "dropout", "build", "args")}
"""What leaves the shape of the weights as it is."""

_NO_TOKENIZER = ("shards", "synthetic")


def world(config: RunConfig, local_gpus: int = 0) -> World:
    """The ranks of the run, with the defaults of `cluster.nproc_per_node` filled in.

    local_gpus: GPUs of this host; counts only with the local backend. Raises ConfigError where a remote
    backend has no instance type or one that the catalog does not have.
    """
    cluster = config.cluster
    if cluster.nproc_per_node is not None:
        return World(cluster.nodes, cluster.nproc_per_node)
    if cluster.backend == "local":
        return World(cluster.nodes, max(1, local_gpus // cluster.nodes))
    return World(cluster.nodes, max(1, instance(_required_type(config)).gpus))


def check_run(config: RunConfig, datastore: str | None = None, local_gpus: int = 0) -> None:
    """Raises ConfigError with the reason if the run cannot work.

    datastore: Metaflow's datastore type (`local`, `s3`, ...), None where it is not known.
    local_gpus: as in `world`.
    """
    for demand in run_demands(config, datastore, local_gpus):
        demand()


def run_demands(config: RunConfig, datastore: str | None = None, local_gpus: int = 0) -> Iterator[Demand]:
    """What `check_run` asks, one thing each."""
    yield from _cluster_demands(config, datastore)
    yield from location_demands(config)
    yield lambda: check_ranks(config, world(config, local_gpus))
    yield lambda: _ranks_have_local_gpus(config, local_gpus)


def check_budget(config: RunConfig) -> None:
    """Raises ConfigError for a limit on money where no price is known. config: with the price that the run will have,
    as `pricing.settle_price_from_root` gives it."""
    limit, cluster = config.budget.max_cost_usd, config.cluster
    if limit is None or instance_price(config, SHIPPED) is not None:
        return
    lacking = "cluster.backend = local has no price"
    if cluster.backend != "local":
        lacking = (
            f"the catalog has no {cluster.market} price of cluster.instance_type = {cluster.instance_type} "
            f"in cluster.region = {cluster.region}"
        )
    raise ConfigError(f"budget.max_cost_usd = {limit:g}: {lacking}; use budget.max_hours instead")


def check_cluster(config: RunConfig, datastore: str | None = None) -> None:
    """The part of it that `cluster:` alone decides."""
    for demand in _cluster_demands(config, datastore):
        demand()


def _cluster_demands(config: RunConfig, datastore: str | None) -> Iterator[Demand]:
    if config.cluster.backend != "local":
        yield from (partial(demand, config) for demand in _OF_MACHINES)
        yield from shared_storage_demands(config)
        yield lambda: _check_datastore_is_s3(config, datastore)
        yield lambda: _fits_machine(config)


def machine_refusals(config: RunConfig, local_gpus: int, host_mib: int) -> tuple[str, ...]:
    """All that `check_run` and the checks of this host's memory and of the budget say against the machines, each in one
    line: what a plan of the run is to warn of. Where files are does not come into a plan, and is not looked at.

    config: as for `check_budget`. local_gpus: as in `world`. host_mib: memory of this host.
    """
    demands: tuple[Callable[[RunConfig], None], ...] = (*_OF_MACHINES, _fits_machine)
    if config.cluster.backend == "local":
        demands = (
            lambda run: _ranks_have_local_gpus(run, local_gpus),
            lambda run: check_offload(run, local_gpus),
            lambda run: check_host_memory(run, local_gpus, host_mib),
        )
    return tuple(
        str(error) for error in errors.collect_errors(partial(demand, config) for demand in (*demands, check_budget))
    )


def check_offload(config: RunConfig, local_gpus: int) -> None:
    """Raises ConfigError where a local run would offload to the memory that it computes in."""
    if local_gpus:
        return
    if config.parallel.cpu_offload:
        raise ConfigError("parallel.cpu_offload = true: there is no GPU: everything is in host memory already")
    check_engine_offload(config.engine)


def _fits_machine(config: RunConfig) -> None:
    check_machine_memory(config, world(config), instance(_required_type(config)))


def _required_type(config: RunConfig) -> str:
    name = config.cluster.instance_type
    if name is None:
        raise ConfigError(
            f"cluster.instance_type: required with cluster.backend = {config.cluster.backend}; "
            f"known: {', '.join(instance_names())}"
        )
    return name


def _ranks_have_gpus(config: RunConfig) -> None:
    name = _required_type(config)
    gpus, ranks = instance(name).gpus, config.cluster.nproc_per_node
    if gpus and ranks is not None and ranks > gpus:
        raise ConfigError(f"cluster.nproc_per_node = {ranks}: must be at most the GPUs of a {name}, {gpus}")


def _ranks_have_local_gpus(config: RunConfig, local_gpus: int) -> None:
    # NCCL refuses two ranks on one GPU: "Duplicate GPU detected".
    ranks = world(config, local_gpus)
    if config.cluster.backend == "local" and 0 < local_gpus < ranks.size:
        key = "nproc_per_node" if ranks.nodes <= local_gpus else "nodes"
        raise ConfigError(
            f"cluster.{key} = {getattr(ranks, key)}: the ranks, {ranks}, need a GPU each, and this host has "
            f"{local_gpus}; set cluster.nodes={min(ranks.nodes, local_gpus)}, or CUDA_VISIBLE_DEVICES= for the CPU"
        )


def _keys_belong_to_backend(config: RunConfig) -> None:
    backend, other = config.cluster.backend, {"batch": "kubernetes", "kubernetes": "batch"}
    for key in KUBERNETES_ONLY if backend == "batch" else BATCH_ONLY:
        value = getattr(config.cluster, key)
        if value:
            text = value if isinstance(value, str) else list(value)
            raise ConfigError(f"cluster.{key} = {text}: only with cluster.backend = {other[backend]}, not {backend}")


def _time_limit_is_long_enough(config: RunConfig) -> None:
    hours = config.cluster.time_limit_hours
    if hours * 3600 < MIN_TIME_LIMIT_SECONDS:
        raise ConfigError(f"cluster.time_limit_hours = {hours}: must be at least {MIN_TIME_LIMIT_SECONDS} seconds")


_OF_MACHINES: tuple[Callable[[RunConfig], None], ...] = (
    lambda config: check_backend(config.cluster),
    _ranks_have_gpus,
    _keys_belong_to_backend,
    _time_limit_is_long_enough,
)


def _check_datastore_is_s3(config: RunConfig, datastore: str | None) -> None:
    if datastore not in (None, "s3"):
        raise PrerequisiteMissing(
            f"METAFLOW_DEFAULT_DATASTORE = {datastore}: must be s3 with cluster.backend = {config.cluster.backend}"
        )


def check_same_data(job: str, earlier: Json, config: RunConfig) -> None:
    """Raise ConfigError, naming the key and both values, if `config` makes other sequences than `earlier` did.

    earlier: the configuration the job ran with, as plain data.
    """
    ours = config.model_dump(mode="json")["data"]
    if earlier["data"].get("build") != config.data.build:
        was, now = earlier["data"].get("build"), config.data.build
        raise ConfigError(f"data.build = {now}: job {job} was started with {was}; keep that, or name a new job")
    unused = {"tokenizer"} if config.data.corpus.kind in _NO_TOKENIZER else set()
    _refuse_changes(
        job, "data", _without(earlier["data"], unused), _without(ours, unused), _DATA_MAY_CHANGE | _TOKENIZER_MAY_CHANGE
    )


def check_same_model(job: str, earlier: Json, config: RunConfig) -> None:
    """Raise ConfigError, naming the key and both values, if weights of `earlier` do not fit the model of `config`."""
    was, now = earlier["model"], config.model_dump(mode="json")["model"]
    if ("build" in was) != ("build" in now):
        raise ConfigError(
            f"model = {now['name']}: job {job} was started with {was['name']}; keep that, or name a new job"
        )
    _refuse_changes(job, "model", was, now, _MODEL_MAY_CHANGE)


def _refuse_changes(job: str, at: str, was: Any, now: Any, free: set[str]) -> None:
    """Keys that only one of the two has are of another version, or of another kind, which differs itself."""
    if at in free:
        return
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in sorted(was.keys() & now.keys(), key=lambda key: key != "kind"):
            _refuse_changes(job, f"{at}.{key}", was[key], now[key], free)
    elif was != now:
        raise ConfigError(
            f"{at} = {yaml_value(now)}: job {job} was started with {yaml_value(was)}; keep that, or name a new job"
        )


def _without(tree: Json, keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key not in keys}


def location_demands(config: RunConfig) -> Iterator[Demand]:
    """Demands that raise ConfigError for a bucket that cannot exist, for a tier that is the root again, and for
    settings of S3 where only Google's buckets are configured."""
    yield from (partial(_check_bucket_name, key, location) for key, location in _configured_locations(config))
    yield partial(_tiers_are_elsewhere, config)
    yield partial(_s3_settings_have_a_bucket, config)


def shared_storage_demands(config: RunConfig) -> tuple[Demand, ...]:
    """Demands that raise ConfigError where the machines of a remote backend do not all see the root or a further
    tier."""
    return partial(_root_is_shared, config), partial(_tiers_are_shared, config)


def is_placeholder(location: str) -> bool:
    """Whether the location is in the bucket that the presets name, in place of the user's."""
    return location.startswith(("s3://", "gs://")) and _bucket_name(location) == PLACEHOLDER


def _bucket_name(location: str) -> str:
    return location.partition("://")[2].partition("/")[0]


def _root_is_shared(config: RunConfig) -> None:
    root = config.root
    if root is not None and is_shared(root):
        return
    _check_mounted(config, "root", root)
    if not config.checkpoint.root_is_shared:
        raise ConfigError(
            f"root = {root}: must be {shared_stores()}, or one folder that every machine of the gang sees, "
            "such as FSx for Lustre; if it is that, set checkpoint.root_is_shared=true"
        )


def _tiers_are_shared(config: RunConfig) -> None:
    for tier in config.checkpoint.tiers:
        if not is_shared(tier):
            _check_mounted(config, "checkpoint.tiers", tier)


def _check_mounted(config: RunConfig, key: str, path: str | None) -> None:
    cluster = config.cluster
    mounts = [folder.rstrip("/") for folder in mounted_folders(config)]
    if path is not None and any(path == folder or path.startswith(folder + "/") for folder in mounts):
        return
    mounting = "host_volumes" if cluster.backend == "batch" else "persistent_volume_claims"
    where = f"under {' or '.join(mounts)}" if mounts else f"mounted by cluster.{mounting}"
    raise ConfigError(
        f"{key} = {path or 'null'}: must be {shared_stores()} or a folder {where} "
        f"with cluster.backend = {cluster.backend}, whose machines do not see this one's files"
    )


def mounted_folders(config: RunConfig) -> tuple[str, ...]:
    """Folders that every container of a remote backend sees, e.g. `("/fsx",)`."""
    cluster = config.cluster
    if cluster.backend == "batch":
        # A volume is `/folder` or `/folder_of_the_host:/folder_in_the_container`.
        return tuple(volume.rpartition(":")[2] for volume in cluster.host_volumes)
    return tuple(cluster.persistent_volume_claims.values()) if cluster.backend == "kubernetes" else ()


def _check_bucket_name(key: str, location: str) -> None:
    scheme = location.partition("://")[0]
    pattern, characters = _BUCKETS.get(scheme, (None, ""))
    if pattern is not None and not pattern.fullmatch(_bucket_name(location)):
        kind = PrerequisiteMissing if is_placeholder(location) else ConfigError
        raise kind(
            f"{key} = {location}: {_bucket_name(location)} is no bucket; put in the name of yours "
            f"(3 to 63 lower-case letters, digits, {characters})"
        )


def _s3_settings_have_a_bucket(config: RunConfig) -> None:
    """A key that encrypts, or an endpoint, must not be lost without a word."""
    places = [location for _, location in _configured_locations(config)]
    if any(place.startswith("s3://") for place in places) or not any(place.startswith("gs://") for place in places):
        return
    for name in StoreConfig.model_fields:
        if (value := getattr(config.checkpoint.store, name)) != getattr(StoreConfig(), name):
            raise ConfigError(
                f"checkpoint.store.{name} = {value}: applies to s3:// only; for gs:// set it on the bucket, "
                "and the endpoint by $STORAGE_EMULATOR_HOST"
            )


def _tiers_are_elsewhere(config: RunConfig) -> None:
    for tier in config.checkpoint.tiers:
        if config.root is not None and tier.rstrip("/") == config.root.rstrip("/"):
            raise ConfigError(f"checkpoint.tiers = {tier}: must be another place than root, which is the first tier")


def _configured_locations(config: RunConfig) -> Iterator[tuple[str, str]]:
    if config.root is not None:
        yield "root", config.root
    for tier in config.checkpoint.tiers:
        yield "checkpoint.tiers", tier
    if isinstance(config.data.corpus, FilesCorpus | DatasetCorpus | ShardsCorpus):
        yield "data.corpus.path", config.data.corpus.path
