"""What `convoy plan` reads: a configuration, prices, what this host has, and measurements."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from convoy.catalog.gpus import chip_peak
from convoy.catalog.prices import SHIPPED, PriceBook
from convoy.cli.options import store_at
from convoy.config.errors import ConfigError
from convoy.config.loader import config_file, configs_folder, default_root, read_overrides, read_run, read_tree, resolve
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig, check_ranks
from convoy.launch.checks import host
from convoy.launch.checks.compatibility import machine_refusals, world
from convoy.launch.checks.memory import host_memory_mib
from convoy.launch.plans import this_host_facts
from convoy.launch.pricing import read_prices, settle_price
from convoy.planner.cost.failures import RestartCost, SaveCost
from convoy.planner.measurements import Measurements
from convoy.planner.search.market import MeasurementsFor
from convoy.planner.step.calibration import Calibration, efficiency_key, read_calibration, shipped_calibration
from convoy.planner.workload import as_rented, machine_of, rented_type


def read_config(name: str, words: Sequence[str] = ()) -> RunConfig:
    """The configuration of a file, or of a preset of `configs/train/`, with `key=value` words over it.

    Raises ConfigError.
    """
    path = _config_path(name)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    tree = read_tree("the configuration", text)
    if tree and tree.keys() <= TransformerConfig.model_fields.keys():
        raise ConfigError(_model_only_text(str(path), path))
    return resolve(read_run(text), read_overrides(" ".join(words)))


def read_price_book(root: str | None, configured: str | None, endpoint_url: str | None) -> PriceBook:
    """The prices that `convoy prices refresh` left below `root`, or else below the configured root or the default one.

    A bucket is read only if `root` names it, for a plan must not wait for one. Raises ConfigError and StoreUnavailable.
    """
    where = root or configured or default_root()
    is_remote = "://" in where
    if (is_remote and root is None) or not (is_remote or Path(where, "prices.json").is_file()):
        return SHIPPED
    return PriceBook(read_prices(store_at(where, endpoint_url)))


def refusals_of(config: RunConfig, prices: PriceBook) -> tuple[str, ...]:
    """Why the train flow would not start it, by what it requires of machines, market, memory and budget. Where it names
    machines that its local backend does not rent, only the ranks are checked. Raises ConfigError where there are no
    ranks that could share the batch as configured: nothing could be planned."""
    planned = as_rented(config)
    gpus = host.local_gpus() if planned.cluster.backend == "local" else 0
    check_ranks(planned, world(planned, gpus))
    if planned != config:
        return ()
    return machine_refusals(settle_price(config, prices) if rented_type(planned) else config, gpus, host_memory_mib())


def _config_path(name: str) -> Path:
    try:
        return config_file(name, "train")
    except ConfigError:
        if (model := configs_folder() / "models" / f"{name}.yaml").is_file():
            raise ConfigError(_model_only_text(name, model)) from None
        raise


def _model_only_text(name: str, path: Path) -> str:
    problem = f"{name}: this is a model, without machines and batch"
    if path.absolute().parent != (configs_folder() / "models").absolute():
        return f"{problem}; lay it under `model:` of a training configuration"
    return f"{problem}; use `convoy plan search {path.stem}`, or a training configuration with --set model={path.stem}"


_POSITIVE = click.FloatRange(min=0, min_open=True)

CALIBRATION = click.option(
    "--calibration",
    type=click.Path(exists=True, dir_okay=False),
    help="Calibration file written by `calibrate`. Default: the shipped one.",
)

RESULTS = click.option(
    "--results", type=click.Path(exists=True), help="Benchmark results that provide save and restart times."
)

REPLACEMENT = click.option(
    "--replacement-seconds", type=_POSITIVE, help="Time to replace a lost machine. Default: 600, assumed."
)

WRITES = click.option(
    "--write-gb-per-second", type=_POSITIVE, help="Write rate of each machine to the root while all write."
)

_OPTIONS = (
    CALIBRATION,
    RESULTS,
    click.option("--stall-seconds", type=_POSITIVE, help="Measured training stall per save, in seconds."),
    click.option(
        "--durable-seconds", type=_POSITIVE, help="Seconds until a save is durable; requires --stall-seconds."
    ),
    click.option("--restart-seconds", type=_POSITIVE, help="Measured restart time once all machines are available."),
    REPLACEMENT,
    WRITES,
)


def with_measured_options(command: Any) -> Any:
    """A decorator that adds the options whose values `read_measurements` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_measurements(config: RunConfig, options: dict[str, Any], prices: PriceBook) -> Measurements:
    """What the options and the results that they name measured; an option counts before the results.

    options: their values by name. Raises ConfigError.
    """
    host_facts = this_host_facts(config)
    own = Measurements(
        saving=_save_cost(options["stall_seconds"], options["durable_seconds"]),
        restart=None if options["restart_seconds"] is None else RestartCost(options["restart_seconds"]),
        replacement_seconds=options["replacement_seconds"],
        node_bytes_per_second=options["write_gb_per_second"] and options["write_gb_per_second"] * 1e9,
        prices=prices,
        **_calibration_arguments(config, options["calibration"], host_facts),
        **host_facts,
    )
    add_results = results_adder(options["results"])
    return own if add_results is None else add_results(own, config, machine_of(config, **host_facts))


def results_adder(path: str | None) -> MeasurementsFor | None:
    """Adds what a benchmark's results measured of saves and restarts, where it is not measured yet. None: no results
    are named. Raises ConfigError."""
    if path is None:
        return None
    from convoy.benchmark.planner_saves import save_restart_figures, with_measured_saves  # bring numpy, unlike a plan
    from convoy.cli.results import read_results

    cases = read_results(Path(path))
    try:
        results = save_restart_figures(cases, path)
    except ValueError as error:
        raise ConfigError(f"--results {path}: {error}") from None
    return lambda own, config, machine: with_measured_saves(own, results, config, machine)


def calibration_at(path: str | None) -> Calibration:
    """The calibration of a file, or the shipped one. Raises ConfigError."""
    return shipped_calibration() if path is None else read_calibration(Path(path))


def _calibration_arguments(config: RunConfig, path: str | None, host_facts: dict[str, Any]) -> dict[str, Any]:
    """A calibration, with the machine that it was measured on where the planned one is not in the catalog. Raises
    ConfigError for one that does not cover the planned machines."""
    if path is None:
        return {}
    calibration, machine = calibration_at(path), machine_of(config, **host_facts)
    train, ranks = config.train, config.cluster.nodes * machine.ranks
    try:
        if chip_peak(machine.gpu) is not None:
            efficiency_key(calibration, machine.gpu)
            return {"calibration": calibration}
        measured = calibration.machine_for(train.param_dtype, ranks, train.threads_per_rank)
        hosts = 1 if config.cluster.backend == "local" else config.cluster.nodes
        links = calibration.links_for(hosts, ranks)
        measured = links.of(measured) if links is not None and measured is not None else measured
    except ValueError as error:
        raise ConfigError(f"--calibration {path}: {error}") from None
    return {"calibration": calibration, "measured": measured}


def _save_cost(stall: float | None, durable: float | None) -> SaveCost | None:
    if stall is None and durable is not None:
        raise ConfigError("--durable-seconds: must come with --stall-seconds")
    if stall is not None and durable is not None and durable < stall:
        raise ConfigError(f"--durable-seconds {durable:g}: must be at least --stall-seconds, {stall:g}")
    return None if stall is None else SaveCost(stall, durable or stall)
