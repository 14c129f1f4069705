"""What the planner says of a gang's cases before their first block. Imports no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from convoy.benchmark.groups import Group, VariantSpec
from convoy.benchmark.planner_runs import workload_of
from convoy.benchmark.results.case import Predicted
from convoy.catalog.gpus import rented_gpu
from convoy.catalog.measured_machine import MeasuredMachine
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.gang.assignment import Place
from convoy.model.counts import saved_bytes
from convoy.planner.memory.gpu import peak
from convoy.planner.step.calibration import shipped, shipped_for
from convoy.planner.step.step_time import step_time, unmodelled
from convoy.planner.workload import Workload

OURS = ("ours", "saving")
"""Kinds whose step, and whose tensors, are Convoy's own."""

T = TypeVar("T")


def predictions(
    group: Group, place: Place, machines: Mapping[str, MeasuredMachine], *, on_gpus: bool
) -> dict[str, Predicted]:
    """Of all cases of a gang by their names, with the constants that are shipped.

    place: of any of its ranks. machines: what its slowest rank measured, by the type that was computed in; none where
    the catalog has the machines. on_gpus: it computes on such.
    """
    return {spec.name: _Planned(spec, group, place, machines, on_gpus).predicted() for spec in group.variants}


@dataclass(frozen=True)
class _Planned:
    """One case."""

    spec: VariantSpec
    group: Group
    place: Place
    machines: Mapping[str, MeasuredMachine]
    on_gpus: bool

    @cached_property
    def config(self) -> RunConfig:
        return self.spec.config(self.group.run)

    @property
    def ranks(self) -> int:
        """That train together."""
        return self.spec.ranks or self.place.world_size

    @property
    def per_node(self) -> int:
        return min(self.ranks, self.place.nproc_per_node)

    @property
    def machine(self) -> MeasuredMachine | None:
        return self.machines.get(self.config.train.param_dtype) if self.spec.kind == "ours" else None

    @property
    def job(self) -> Workload:
        nodes = self.ranks // self.per_node
        return workload_of(self.config, nodes, self.per_node, self.machine, on_gpus=self.on_gpus)

    def predicted(self) -> Predicted:
        seconds, why_no_step = _made(self.why_no_step(), self._step_seconds)
        tensors, why_no_peak = _made(self.why_no_peak(), self._peak)
        calibration = shipped() if self.machine is None else shipped_for(self.machine.kind)
        return Predicted(
            calibration=f"{calibration.date}: {calibration.data}",
            machine=self.machine,
            nodes=self.ranks // self.per_node,
            ranks_per_node=self.per_node,
            step_seconds=seconds,
            why_no_step=why_no_step,
            peak_bytes=tensors,
            why_no_peak=why_no_peak,
            saved_bytes=self._saved(),
        )

    def why_no_step(self) -> str:
        """What of its step the planner has no formula of; empty: nothing. Of a machine that the catalog does not know
        is known what all ranks of the gang did at once, each on the cores that `measure.pin` gives it."""
        spec, config, all_ranks = self.spec, self.config, self.place.world_size
        if spec.kind != "ours":
            return "a save is in each block" if spec.kind == "saving" else "not Convoy's own step"
        if spec.needs is not None:
            return "an attention of which nothing is known"
        if self.group.environment is not None:
            return "its environment is not planned"
        if why := unmodelled(config):
            return why
        if self.machine is not None and self.ranks < all_ranks and not spec.at_once:
            return f"{self.ranks} of the {all_ranks} ranks that measured the machine at once are at work"
        if self.machine is not None and spec.pinned(self.group.measure) != self.group.measure.pin:
            return "the machine was measured by ranks on other cores"
        return ""

    def why_no_peak(self) -> str:
        """The same of the tensors at its peak."""
        if self.spec.kind not in OURS:
            return "not Convoy's own tensors"
        if self.spec.needs is not None:
            return "an attention of which nothing is known"
        if self.config.train.compile:
            return "compiled blocks keep less, and how much less is not planned"
        return ""

    def _step_seconds(self) -> float:
        if rented_gpu(gpu := self.job.machine.gpu) is not None and not self.on_gpus:
            raise ValueError(f"{gpu} is configured, and its ranks compute on CPUs")
        return step_time(self.job).total

    def _peak(self) -> int:
        return sum(peak(self.job, fused=self.config.optimizer.fused).values())

    def _saved(self) -> float | None:
        model = self.config.model
        if self.spec.kind != "saving" or not isinstance(model, TransformerConfig):
            return None
        return float(saved_bytes(model))


def _made(why_not: str, make: Callable[[], T]) -> tuple[T | None, str]:
    """It, or why there is none: no prediction is worth a gang that is paid for."""
    if why_not:
        return None, why_not
    try:
        return make(), ""
    except ValueError as error:
        return None, str(error)
    except Exception as error:  # a bug in the planner
        return None, f"{type(error).__name__}: {error}"
