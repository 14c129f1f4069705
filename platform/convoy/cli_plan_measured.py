"""What a plan is given as measured: by options, by a benchmark's results, by a calibration."""

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from convoy.config.run import RunConfig
    from convoy.planner.calibration import Calibration
    from convoy.planner.failures import Restart, Saving

_POSITIVE = click.FloatRange(min=0, min_open=True)

CALIBRATION = click.option(
    "--calibration",
    type=click.Path(exists=True, dir_okay=False),
    help="Of `calibrate`, in place of the shipped one.",
)

REPLACEMENT = click.option(
    "--replacement-seconds", type=_POSITIVE, help="Until there is another one. Default: 600, assumed."
)

WRITES = click.option(
    "--write-gb-per-second", type=_POSITIVE, help="Of each machine to the root, while all others write."
)

_OPTIONS = (
    CALIBRATION,
    click.option("--results", type=click.Path(exists=True), help="Of a benchmark: its saves and restarts."),
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


def given_measured(config: "RunConfig", told: dict[str, Any], host: dict[str, Any]) -> dict[str, Any]:
    """As `Given` takes it. An option counts before the results. told: values of the options. host: what this host has,
    as `Given` takes it. Raises ConfigError."""
    rate = told["write_gb_per_second"]
    found: dict[str, Any] = {
        "saving": _saving(told["stall_seconds"], told["durable_seconds"]),
        "restart": _restart(told["restart_seconds"]),
        "replacement_seconds": told["replacement_seconds"],
        "node_bytes_per_second": rate and rate * 1e9,
    }
    sources = []
    if told["results"]:
        for key, (value, source) in _shown(config, told["results"], host).items():
            if found[key] is None:
                found[key] = value
                sources.append(source)
    return {**found, "sources": tuple(sources), **_calibrated(config, told["calibration"], host)}


def calibration_of(path: str | None) -> "Calibration":
    """Raises ConfigError."""
    from pathlib import Path

    from convoy.planner.calibration import read_calibration, shipped

    return shipped() if path is None else read_calibration(Path(path))


def _calibrated(config: "RunConfig", path: str | None, host: dict[str, Any]) -> dict[str, Any]:
    """With the machine that it was measured on, where the planned one is of no catalog."""
    from convoy.catalog.gpus import rented_gpu
    from convoy.config.errors import ConfigError
    from convoy.planner.machine import machine_of

    if path is None:
        return {}
    calibration, machine = calibration_of(path), machine_of(config, **host)
    if rented_gpu(machine.gpu) is not None:
        return {"calibration": calibration}
    train, ranks = config.train, config.cluster.nodes * machine.ranks
    try:
        found = calibration.machine_for(train.param_dtype, ranks, train.threads_per_rank)
    except ValueError as error:
        raise ConfigError(f"--calibration {path}: {error}") from None
    return {"calibration": calibration, "measured": found}


def _shown(config: "RunConfig", results: str, host: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    """By the keys of `Given`; without what the results do not tell of."""
    from pathlib import Path

    from convoy.cli_plan_calibrate import read_results
    from convoy.config.errors import ConfigError
    from convoy.config.model import CustomModelConfig
    from convoy.model.counts import saved_bytes
    from convoy.planner.machine import machine_of
    from convoy.planner.own_saves import Planned, shown

    if isinstance(config.model, CustomModelConfig):
        return {}
    machine = machine_of(config, **host)
    planned = Planned(config, machine, saved_bytes(config.model))
    try:
        found = shown(read_results(Path(results)), results, planned)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"--results {results}: {error}") from None
    told = {
        "saving": found.saving,
        "restart": found.restart,
        "node_bytes_per_second": found.node_bytes_per_second,
    }
    return {key: value for key, value in told.items() if value is not None}


def _saving(stall: float | None, durable: float | None) -> "Saving | None":
    from convoy.config.errors import ConfigError
    from convoy.planner.failures import Saving

    if stall is None and durable is not None:
        raise ConfigError("--durable-seconds: must come with --stall-seconds")
    if stall is not None and durable is not None and durable < stall:
        raise ConfigError(f"--durable-seconds {durable:g}: must be at least --stall-seconds, {stall:g}")
    return None if stall is None else Saving(stall, durable or stall)


def _restart(seconds: float | None) -> "Restart | None":
    from convoy.planner.failures import Restart

    return None if seconds is None else Restart(seconds)
