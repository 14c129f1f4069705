"""What `convoy plan` reads: a configuration, prices, what this host has, and measurements."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from convoy.catalog.prices import PriceBook
    from convoy.config.run import RunConfig
    from convoy.planner.cost.failures import Restart, Saving
    from convoy.planner.measurements import Measurements
    from convoy.planner.search.market import MeasurementsFor
    from convoy.planner.step.calibration import Calibration


def read_config(name: str, words: Sequence[str] = ()) -> "RunConfig":
    """Of a file, or of a preset of `configs/train/`, with `key=value` words laid on it. Raises ConfigError."""
    from convoy.config.errors import ConfigError
    from convoy.config.loader import mapping, read_overrides, read_run, resolve

    path = _file(name)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    _is_no_model(path, mapping("the configuration", text))
    return resolve(read_run(text), read_overrides(" ".join(words)))


def price_book(root: str | None, configured: str | None, endpoint_url: str | None) -> "PriceBook":
    """With what `convoy prices refresh` left below `root`, or else below the configured folder or the default one. A
    bucket is asked only where it is named, for a plan must not wait for one. Raises ConfigError, and StoreUnavailable.
    """
    from convoy.catalog.prices import SHIPPED, PriceBook
    from convoy.config.loader import default_root

    where = root or configured or default_root()
    remote = "://" in where
    if (remote and root is None) or not (remote or Path(where, "prices.json").is_file()):
        return SHIPPED
    from convoy.cli.options import store_at
    from convoy.launch.pricing import read_prices

    return PriceBook(read_prices(store_at(where, endpoint_url)))


def checked(config: "RunConfig", prices: "PriceBook") -> tuple[str, ...]:
    """Why the train flow would not start it, by what it asks of machines, market, memory and budget. Where it names
    machines that its local backend does not rent, only the ranks are looked at. Raises ConfigError where there are no
    ranks that could share the batch as configured: nothing could be planned."""
    from convoy.config.ranks import check_ranks
    from convoy.launch.checks.compatibility import refusals, world
    from convoy.launch.checks.memory import host_memory_mib
    from convoy.launch.pricing import rents, settled
    from convoy.planner.workload import as_rented

    told = as_rented(config)
    gpus = 0
    if told.cluster.backend == "local":
        from convoy.launch.checks.host import local_gpus

        gpus = local_gpus()
    check_ranks(told, world(told, gpus))
    if told != config:
        return ()
    return refusals(settled(config, prices) if rents(told) else config, gpus, host_memory_mib())


def host(config: "RunConfig") -> dict[str, Any]:
    """What this host has, as `Measurements` takes it: only a run on it needs it."""
    from convoy.planner.workload import rented_type

    if rented_type(config) is not None:
        return {}
    from convoy.launch.checks.host import local_gpus
    from convoy.launch.checks.memory import host_memory_mib

    return {"host_bytes": host_memory_mib() * 2.0**20, "host_gpus": local_gpus()}


def _file(name: str) -> Path:
    from convoy.config.errors import ConfigError
    from convoy.config.loader import config_file, configs_folder

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
    from convoy.config.loader import configs_folder

    told = f"{name}: this is a model, without machines and batch"
    if path.absolute().parent != (configs_folder() / "models").absolute():
        return f"{told}; lay it under `model:` of a training configuration"
    return f"{told}; use `convoy plan search {path.stem}`, or a training configuration with --set model={path.stem}"


_POSITIVE = click.FloatRange(min=0, min_open=True)

CALIBRATION = click.option(
    "--calibration",
    type=click.Path(exists=True, dir_okay=False),
    help="Of `calibrate`, in place of the shipped one.",
)

RESULTS = click.option("--results", type=click.Path(exists=True), help="Of a benchmark: its saves and restarts.")

REPLACEMENT = click.option(
    "--replacement-seconds", type=_POSITIVE, help="Until there is another one. Default: 600, assumed."
)

WRITES = click.option(
    "--write-gb-per-second", type=_POSITIVE, help="Of each machine to the root, while all others write."
)

_OPTIONS = (
    CALIBRATION,
    RESULTS,
    click.option("--stall-seconds", type=_POSITIVE, help="For which a save stops training, as measured."),
    click.option("--durable-seconds", type=_POSITIVE, help="Until a save is of use; with --stall-seconds."),
    click.option("--restart-seconds", type=_POSITIVE, help="Once all machines are there again, as measured."),
    REPLACEMENT,
    WRITES,
)


def measured_options(command: Any) -> Any:
    """As a decorator: the options whose values `given_measured` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def given_measured(
    config: "RunConfig", told: dict[str, Any], prices: "PriceBook", host: dict[str, Any]
) -> "Measurements":
    """An option counts before the results. told: values of the options. host: what this host has, as `Measurements`
    takes it. Raises ConfigError."""
    from convoy.planner.measurements import Measurements
    from convoy.planner.workload import machine_of

    given = Measurements(
        saving=_saving(told["stall_seconds"], told["durable_seconds"]),
        restart=_restart(told["restart_seconds"]),
        replacement_seconds=told["replacement_seconds"],
        node_bytes_per_second=bytes_per_second(told["write_gb_per_second"]),
        prices=prices,
        **_calibrated(config, told["calibration"], host),
        **host,
    )
    beside = shown_by(told["results"])
    return given if beside is None else beside(given, config, machine_of(config, **host))


def bytes_per_second(gb: float | None) -> float | None:
    return None if gb is None else gb * 1e9


def shown_by(path: str | None) -> "MeasurementsFor | None":
    """What a benchmark's results tell of saves and restarts on given machines, in place of what is not given. None: no
    results are named. Raises ConfigError."""
    if path is None:
        return None
    from pathlib import Path

    from convoy.benchmark.planner_saves import results_of, with_shown
    from convoy.cli.calibrate import read_results
    from convoy.config.errors import ConfigError

    cases = read_results(Path(path))
    try:
        results = results_of(cases, path)
    except ValueError as error:
        raise ConfigError(f"--results {path}: {error}") from None
    return lambda given, config, machine: with_shown(given, results, config, machine)


def calibration_of(path: str | None) -> "Calibration":
    """Raises ConfigError."""
    from pathlib import Path

    from convoy.planner.step.calibration import read_calibration, shipped

    return shipped() if path is None else read_calibration(Path(path))


def _calibrated(config: "RunConfig", path: str | None, host: dict[str, Any]) -> dict[str, Any]:
    """With the machine that it was measured on, where the planned one is of no catalog. Raises ConfigError for one that
    tells nothing of the planned machines."""
    from convoy.catalog.gpus import rented_gpu
    from convoy.config.errors import ConfigError
    from convoy.planner.step.calibration import chip_of
    from convoy.planner.workload import machine_of

    if path is None:
        return {}
    calibration, machine = calibration_of(path), machine_of(config, **host)
    train, ranks = config.train, config.cluster.nodes * machine.ranks
    try:
        if rented_gpu(machine.gpu) is not None:
            chip_of(calibration, machine.gpu)
            return {"calibration": calibration}
        found = calibration.machine_for(train.param_dtype, ranks, train.threads_per_rank)
    except ValueError as error:
        raise ConfigError(f"--calibration {path}: {error}") from None
    return {"calibration": calibration, "measured": found}


def _saving(stall: float | None, durable: float | None) -> "Saving | None":
    from convoy.config.errors import ConfigError
    from convoy.planner.cost.failures import Saving

    if stall is None and durable is not None:
        raise ConfigError("--durable-seconds: must come with --stall-seconds")
    if stall is not None and durable is not None and durable < stall:
        raise ConfigError(f"--durable-seconds {durable:g}: must be at least --stall-seconds, {stall:g}")
    return None if stall is None else Saving(stall, durable or stall)


def _restart(seconds: float | None) -> "Restart | None":
    from convoy.planner.cost.failures import Restart

    return None if seconds is None else Restart(seconds)
