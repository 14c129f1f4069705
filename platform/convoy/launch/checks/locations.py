"""Where the files of a run are: refuses places that cannot exist, and those that the machines do not see. Pure."""

import re
from collections.abc import Callable, Iterator
from functools import partial

from convoy.config.data import DatasetCorpus, FilesCorpus, ShardsCorpus
from convoy.config.errors import ConfigError, PrerequisiteMissing
from convoy.config.run import RunConfig
from convoy.storage.uri import is_shared, shared_stores

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


PLACEHOLDER = "YOUR-BUCKET"
"""Stands in the presets for the name of the user's bucket."""

Demand = Callable[[], None]


def of_locations(config: RunConfig) -> Iterator[Demand]:
    """Demands that raise ConfigError for a bucket that cannot exist, and for a tier that is the root again."""
    yield from (partial(_is_real, key, location) for key, location in _locations(config))
    yield partial(_tiers_are_elsewhere, config)


def of_shared(config: RunConfig) -> tuple[Demand, ...]:
    """Demands that raise ConfigError where the machines of a remote backend do not all see the root or a further
    tier."""
    return partial(_root_is_shared, config), partial(_tiers_are_shared, config)


def is_placeholder(location: str) -> bool:
    """Whether the location is in the bucket that the presets name, in place of the user's."""
    return location.startswith("s3://") and _bucket(location) == PLACEHOLDER


def _bucket(location: str) -> str:
    return location.removeprefix("s3://").partition("/")[0]


def _root_is_shared(config: RunConfig) -> None:
    root = config.root
    if root is not None and is_shared(root):
        return
    _is_mounted(config, "root", root)
    if not config.checkpoint.root_is_shared:
        raise ConfigError(
            f"root = {root}: must be {shared_stores()}, or one folder that every machine of the gang sees, "
            "such as FSx for Lustre; if it is that, set checkpoint.root_is_shared=true"
        )


def _tiers_are_shared(config: RunConfig) -> None:
    for tier in config.checkpoint.tiers:
        if not is_shared(tier):
            _is_mounted(config, "checkpoint.tiers", tier)


def _is_mounted(config: RunConfig, key: str, path: str | None) -> None:
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


def _is_real(key: str, location: str) -> None:
    if location.startswith("s3://") and not _BUCKET.fullmatch(_bucket(location)):
        kind = PrerequisiteMissing if is_placeholder(location) else ConfigError
        raise kind(
            f"{key} = {location}: {_bucket(location)} is no bucket; put in the name of yours "
            "(3 to 63 lower-case letters, digits, dots and hyphens)"
        )


def _tiers_are_elsewhere(config: RunConfig) -> None:
    for tier in config.checkpoint.tiers:
        if config.root is not None and tier.rstrip("/") == config.root.rstrip("/"):
            raise ConfigError(f"checkpoint.tiers = {tier}: must be another place than root, which is the first tier")


def _locations(config: RunConfig) -> Iterator[tuple[str, str]]:
    if config.root is not None:
        yield "root", config.root
    for tier in config.checkpoint.tiers:
        yield "checkpoint.tiers", tier
    if isinstance(config.data.corpus, FilesCorpus | DatasetCorpus | ShardsCorpus):
        yield "data.corpus.path", config.data.corpus.path
