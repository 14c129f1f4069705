"""Assumptions of a plan in place of measurements: sentences, each with its value, day and source.

None of them depends on the number of machines, so that a search over machines reports each once.
"""

from collections.abc import Iterator

from convoy.catalog.instances import interruption_band
from convoy.config.run import RunConfig
from convoy.display import formatting
from convoy.planner.cost.cost_model import CostModel
from convoy.planner.cost.failures import (
    ANNOUNCED,
    GPU_FAULT_SECONDS,
    NOTICE_SECONDS,
    NOTICED_SECONDS,
    REPLACEMENT_SECONDS,
    RESTART_SECONDS,
    RESTORED_BYTES_PER_SECOND,
    SAVED_BYTES_PER_STALL_SECOND,
    AssumedValue,
)
from convoy.planner.measurements import Measurements
from convoy.planner.step.calibration import Calibration
from convoy.planner.workload import Workload, rented_type

UNUSED_PRICE = "cluster.price is not used: only runs with cluster.backend = batch or kubernetes have a cost"


def unused_key_assumptions(config: RunConfig) -> Iterator[str]:
    """An instance type and a price that a local run names without using them."""
    named = config.cluster.instance_type
    if named is not None and rented_type(config) is None:
        yield f"a local run computes on this host: cluster.instance_type = {named} only labels it; set cluster.backend"
    if config.cluster.price is not None and config.cluster.backend == "local":
        yield UNUSED_PRICE


def step_assumptions(job: Workload, calibration: Calibration) -> Iterator[str]:
    """The step's time."""
    chip = job.machine.gpu
    other = calibration.stands_for.get(chip)
    if other is not None:
        yield (
            f"a {chip} reaches as much of its peak as an {other} does of its own: the calibration of {calibration.date}"
            f" has no run on {chip}"
        )
    if job.parallel.tensor > 1:
        yield "parallel.tensor takes the time that its formulas have: the calibration has no run with it"
    if job.parallel.pipeline > 1:
        yield "parallel.pipeline takes the time and the memory that its formulas have: nobody compared them with a run"


def cost_assumptions(costs: CostModel) -> Iterator[str]:
    """Saves, interruptions, and what follows them; the sources of measurements come first."""
    measurements = costs.measurements
    yield from measurements.sources
    if measurements.saving is None:
        stall = SAVED_BYTES_PER_STALL_SECOND
        yield f"a save stops a rank for its bytes at {formatting.size(stall.value)}/s{_day_and_source(stall)}"
    if costs.config.cluster.instance_type is None:
        yield "nothing interrupts a gang on machines of one's own"
        return
    if measurements.restart is None:
        whole, read = RESTART_SECONDS, RESTORED_BYTES_PER_SECOND
        yield (
            f"a restart takes {formatting.duration(whole.value)}{_day_and_source(whole)}, and a rank reads its bytes at"
            f" {formatting.size(read.value)}/s{_day_and_source(read)}"
        )
    if measurements.node_bytes_per_second is None and (measurements.saving is None or measurements.restart is None):
        yield "storage is not a bottleneck: how fast a machine writes to the root is unknown (--write-gb-per-second)"
    wait = REPLACEMENT_SECONDS
    if measurements.replacement_seconds is None and costs.restart.wait_seconds == wait.value:
        yield f"another machine is there {formatting.duration(wait.value)} after one is gone{_day_and_source(wait)}"
    breaks = costs.hardware_failures.faults_seconds != float("inf")
    yield from _failure_assumptions(costs.instance, breaks, measurements)


def _failure_assumptions(instance: str, has_faults: bool, measurements: Measurements) -> Iterator[str]:
    if has_faults:
        faults = GPU_FAULT_SECONDS
        years = formatting.long_duration(faults.value)
        yield f"a GPU, or what it needs, breaks once in {years}{_day_and_source(faults)}"
    band = interruption_band(instance)
    if band is None:
        return
    yield (
        f"of {instance} on spot {100 * band.low:g} to {100 * band.high:g} % are reclaimed a month ({band.date},"
        f" {band.source})"
    )
    if measurements.node_bytes_per_second is None:
        yield "spot notices are of no use: how fast a machine writes to the root is unknown (--write-gb-per-second)"
        return
    ahead, noticed = NOTICE_SECONDS, NOTICED_SECONDS
    yield (
        f"{ANNOUNCED.value:.0%} of machines that are reclaimed have notice, "
        f"{formatting.duration(ahead.value)} ahead{_day_and_source(ahead)}; "
        f"it is noticed after {formatting.duration(noticed.value)}{_day_and_source(noticed)}"
    )


def _day_and_source(figure: AssumedValue) -> str:
    return f" ({figure.date}, {figure.source})"
