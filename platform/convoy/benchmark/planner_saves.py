"""Costs of saves and restarts, measured by a benchmark of one's own, for the state and the machines of a plan.

The checkpoint suite says how long a save stops a step, and how fast a rank writes and reads; the recovery suite how
long a gang needs from the loss of a node to its next step. Figures are scaled by the bytes of a rank. The part of a
save's time that does not depend on its size is then scaled too: the figures of a large state come out too long, not
too short.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from convoy.benchmark.analysis.checkpoints import CheckpointFigures, checkpoint_figures, predict
from convoy.benchmark.analysis.recovery import drill_figures
from convoy.benchmark.results.case import Case, Hardware
from convoy.benchmark.results.values import SampleMedian
from convoy.checkpoint.writer.parts import part_pace as pace
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.display import formatting
from convoy.model.counts import checkpoint_bytes
from convoy.planner.cost.failures import (
    RESTART_SECONDS,
    RESTORED_BYTES_PER_SECOND,
    RestartCost,
    SaveCost,
    assumed_restart,
)
from convoy.planner.measurements import Measurements
from convoy.planner.workload import Machine, rented_type

DRILL = "node-kill"
"""What is nearest to the loss of a machine."""


Sourced = tuple[Any, str]
"""A measured cost, and its source."""


@dataclass(frozen=True)
class PlannedState:
    """The state that a plan saves, and the machines that save it."""

    config: RunConfig
    machine: Machine
    state_bytes: float

    @property
    def ranks(self) -> int:
        return self.config.cluster.nodes * self.machine.ranks

    @property
    def part_bytes(self) -> float:
        return self.state_bytes / self.ranks

    @property
    def network_bytes_per_second(self) -> float | None:
        """Of all machines; None: not known."""
        return self.machine.network_bytes_per_second * self.config.cluster.nodes or None

    def transfer_seconds(self, figures: CheckpointFigures, rate: SampleMedian, *, load: bool = False) -> float:
        """Of a save or a load with nothing else going on: as a benchmark's page predicts those of larger states."""
        bought, network = figures.storage_bytes_per_second, self.network_bytes_per_second
        return predict("load" if load else "save", self.state_bytes, self.ranks, rate, bought, network).seconds


@dataclass(frozen=True)
class SaveRestartFigures:
    """The figures of a benchmark on saves and on restarts."""

    name: str
    """With the day on which they were measured."""
    saved: CheckpointFigures | None
    """Of the training with the largest state."""
    lost: SampleMedian | None
    """Seconds from the loss of a node to the next step."""
    hardware: Hardware | None
    """The machines that saved."""


def save_restart_figures(cases: Sequence[Case], name: str) -> SaveRestartFigures:
    """name: of the cases. Raises ValueError where none saved, and no drill was run."""
    saved = max(checkpoint_figures(cases), key=lambda each: each.rest_bytes, default=None)
    lost = next((drill.recovered for drill in drill_figures(cases) if drill.drill == DRILL), None)
    if saved is None and lost is None:
        raise ValueError(f"no case that saves, and no drill {DRILL}")
    case = next((each for each in cases if saved and (each.group, each.name) == (saved.group, saved.case)), None)
    named = f"{name}, {max(each.provenance.measured for each in cases).date()}"
    return SaveRestartFigures(named, saved, lost, case.hardware if case else None)


def measured_costs(results: SaveRestartFigures, planned: PlannedState) -> dict[str, Sourced]:
    """The costs of what is planned, by their names in `Measurements`, as far as the results include them. The source of
    each is the same for all numbers of machines of a type."""
    saved, where = results.saved, f"{results.name}{_machines_text(results.hardware, planned)}"
    costs = {
        "saving": _save_cost(saved, planned, where) if saved else None,
        "restart": _restart_cost(saved, results.lost, planned, results.name),
        "node_bytes_per_second": _node_write_rate(saved, planned, where) if saved else None,
    }
    return {name: cost for name, cost in costs.items() if cost is not None}


def with_measured_saves(
    measurements: Measurements, results: SaveRestartFigures, config: RunConfig, machine: Machine
) -> Measurements:
    """The measurements, with what they lack from the results; unchanged for a model of which nothing is known."""
    if not isinstance(config.model, TransformerConfig):
        return measurements
    costs = measured_costs(results, PlannedState(config, machine, checkpoint_bytes(config.model)))
    new = {name: cost for name, cost in costs.items() if getattr(measurements, name) is None}
    sources = (*measurements.sources, *(source for _, source in new.values()))
    return replace(measurements, sources=sources, **{name: cost for name, (cost, _) in new.items()})


def _save_cost(figures: CheckpointFigures, planned: PlannedState, where: str) -> Sourced | None:
    """Stall: of what training waited for and what a save cost it in all, where that is surely more, the larger."""
    if figures.stall is None or figures.save_rate is None:
        return None
    own = figures.state_bytes / figures.writers
    more = figures.extra is not None and figures.extra.low > figures.stall.median
    once = figures.extra.estimate if more and figures.extra else figures.stall.median
    stall = once * max(1.0, planned.part_bytes / own)
    paced = planned.config.checkpoint.write_mb_per_second
    rate = pace(paced and paced * 1e6, round(planned.part_bytes))
    durable = max(planned.transfer_seconds(figures, figures.save_rate), planned.part_bytes / rate if rate else 0.0)
    source = f"a save, scaled from what was measured: {where}, {formatting.size(own)} of each rank"
    return SaveCost(stall, stall + durable), source


def _restart_cost(
    figures: CheckpointFigures | None, recovery: SampleMedian | None, planned: PlannedState, name: str
) -> Sourced | None:
    """The loss of a node, and the state that is read; either may be assumed, but not both."""
    rate = figures.restore_rate if figures else None
    if recovery is None and rate is None:
        return None
    if recovery is not None:
        before, first = recovery.median, f"the loss of a node as measured: {name}, {DRILL}, n = {recovery.n}"
    else:
        before, date, source = RESTART_SECONDS
        first = f"the loss of a node assumed: {date}, {source}"
    if figures is not None and rate is not None:
        reading = planned.transfer_seconds(figures, rate, load=True)
        second = f"reading the state scaled from what was measured: {name}, {formatting.size(rate.median)}/s of a rank"
    else:
        reading = assumed_restart(planned.state_bytes, planned.ranks).seconds - RESTART_SECONDS.value
        second = f"reading the state assumed: {RESTORED_BYTES_PER_SECOND.source}"
    return RestartCost(before + reading), f"a restart: {first}; {second}"


def _node_write_rate(figures: CheckpointFigures, planned: PlannedState, where: str) -> Sourced | None:
    """Of all its ranks, as far as the storage and the network take it."""
    if figures.save_rate is None:
        return None
    nodes, bought = planned.config.cluster.nodes, figures.storage_bytes_per_second
    limits = [planned.machine.ranks * figures.save_rate.median, planned.machine.network_bytes_per_second]
    limits += [bought / nodes] if bought else []
    rate = f"{formatting.size(figures.save_rate.median)}/s of each rank, as far as storage and network take it"
    return min(filter(None, limits)), f"what a machine writes to the root, from what was measured: {where}, {rate}"


def _machines_text(hardware: Hardware | None, planned: PlannedState) -> str:
    """The machines of the results, and whether others are planned; empty: none saved."""
    if hardware is None:
        return ""
    wanted = rented_type(planned.config)
    other = f", which is not {wanted}" if wanted and hardware.instance_type != wanted else ""
    return f", {hardware.machines}{other}"
