"""What `convoy plan` reads: a configuration, prices, and what this host has."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convoy.catalog.observed import PriceList
    from convoy.config.run import RunConfig


def read_config(name: str, words: Sequence[str] = ()) -> "RunConfig":
    """Of a file, or of a preset of `configs/train/`, with `key=value` words laid on it. Raises ConfigError."""
    from convoy.config.errors import ConfigError
    from convoy.config.load import mapping, read_overrides, read_run, resolve

    path = _file(name)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    _is_no_model(path, mapping("the configuration", text))
    return resolve(read_run(text), read_overrides(" ".join(words)))


def known_prices(root: str | None, configured: str | None, endpoint_url: str | None) -> "PriceList | None":
    """What `convoy prices refresh` left below `root`, or else below the configured folder or the default one: a bucket
    is asked only where it is named, for a plan must not wait for one. Raises ConfigError, and StoreUnavailable."""
    from convoy.config.load import default_root

    where = root or configured or default_root()
    remote = "://" in where
    if (remote and root is None) or not (remote or Path(where, "prices.json").is_file()):
        return None
    from convoy.cli_places import store_at
    from convoy.launch.prices import read_prices

    return read_prices(store_at(where, endpoint_url))


def checked(config: "RunConfig", prices: "PriceList | None") -> tuple[str, ...]:
    """Why the train flow would not start it, by what it asks of machines, market, memory and budget. Where it names
    machines that its local backend does not rent, only the ranks are looked at. Raises ConfigError where there are no
    ranks that could share the batch as configured: nothing could be planned."""
    from convoy.config.ranks import check_ranks
    from convoy.launch.checks.compatibility import refusals, world
    from convoy.launch.checks.memory import host_memory_mib
    from convoy.launch.prices import filled
    from convoy.planner.machine import as_rented

    told = as_rented(config)
    gpus = 0
    if told.cluster.backend == "local":
        from convoy.launch.checks.host import local_gpus

        gpus = local_gpus()
    check_ranks(told, world(told, gpus))
    if told != config:
        return ()
    rented = told.cluster.backend != "local" and told.cluster.instance_type is not None
    return refusals(filled(config, prices) if rented else config, gpus, host_memory_mib())


def host(config: "RunConfig") -> dict[str, Any]:
    """What this host has, as `Given` takes it: only a run on it needs it."""
    from convoy.planner.machine import rented_type

    if rented_type(config) is not None:
        return {}
    from convoy.launch.checks.host import local_gpus
    from convoy.launch.checks.memory import host_memory_mib

    return {"host_bytes": host_memory_mib() * 2.0**20, "host_gpus": local_gpus()}


def _file(name: str) -> Path:
    from convoy.config.errors import ConfigError
    from convoy.config.load import config_file, configs_folder

    try:
        return config_file(name, "train")
    except ConfigError:
        if (model := configs_folder() / "models" / f"{name}.yaml").is_file():
            raise ConfigError(_only_a_model(name, model)) from None
        raise


def _is_no_model(path: Path, tree: dict[str, Any]) -> None:
    from convoy.config.errors import ConfigError
    from convoy.config.model import TransformerConfig

    if tree and tree.keys() <= TransformerConfig.model_fields.keys():
        raise ConfigError(_only_a_model(str(path), path))


def _only_a_model(name: str, path: Path) -> str:
    from convoy.config.load import configs_folder

    told = f"{name}: this is a model, without machines and batch"
    if path.absolute().parent != (configs_folder() / "models").absolute():
        return f"{told}; lay it under `model:` of a training configuration"
    return f"{told}; use `convoy plan search {path.stem}`, or a training configuration with --set model={path.stem}"
