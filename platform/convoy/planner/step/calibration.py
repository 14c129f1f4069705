"""Constants of the step-time model: what hardware and software reach of what a data sheet promises.

Each has a physical meaning and a prior (docs/explanation/step-time.md#constants). A calibration is a dated file that
names the measurements it was fitted to.
"""

import datetime
import functools
from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from convoy.catalog.measured_machine import MeasuredLinks, MeasuredMachine
from convoy.config.base import FrozenConfig
from convoy.config.errors import ConfigError
from convoy.display.formatting import plural

NEGLIGIBLE = 1e-3
"""A factor for what is measured with something else: logarithms are fitted, so that none is 0."""


class Constants(FrozenConfig):
    """Shares are of the data sheet's figure; factors multiply a count of `work` or `traffic`."""

    matmul_efficiency: dict[str, float]
    """Share of the peak that a large matrix product reaches under sustained load, by chip."""
    attention_efficiency: dict[str, float]
    """The same of PyTorch's fused attention, forward and backward together, by chip."""
    triton_attention_efficiency: dict[str, float]
    """The same of MPT's Triton kernel."""
    narrow_head: float = Field(gt=0)
    """Attention takes 1 + narrow_head / (width of a head) times as long: work for each score, whatever the width."""
    fp8_speedup: float = Field(gt=0)
    """Speed of linear layers with fp8 operands over bf16, scaling and casting included."""
    memory_efficiency: float = Field(gt=0)
    """Share of the GPU's memory bandwidth that a streaming kernel reaches."""
    matmul_traffic: float = Field(gt=0)
    """Times the operands and results of a product are moved without its arithmetic hiding it."""
    elementwise_traffic: float = Field(gt=0)
    """Times the counted bytes that kernels between products really move."""
    logit_bytes: float = Field(gt=0)
    """Moved by the loss for each logit, forward and backward."""
    kernel_seconds: float = Field(gt=0)
    """Idle time of the GPU between two kernels."""
    host_seconds: float = Field(gt=0)
    """CPU time to start a kernel, autograd and the wrapper's hooks included; a floor under the time of a pass."""
    inside_efficiency: float = Field(gt=0)
    """Share of NVLink's bandwidth, or of PCIe's where there is none, that a collective reaches."""
    between_efficiency: float = Field(gt=0)
    """Share of the network's bandwidth that a collective reaches."""
    hop_factor: float = Field(gt=0)
    """Times the catalog's latency that each hop of a ring takes."""
    contention: float = Field(gt=0)
    """Share of a hidden collective by which the kernels above it become slower: it holds some of their processors."""
    sharding_traffic: float = Field(gt=0)
    """Times a collective's message is moved through the GPU's own memory: packed, cast, added up."""
    optimizer_bytes: float = Field(gt=0)
    """Moved for each parameter of the rank's share by clipping and AdamW."""
    operations: float = Field(1.0, gt=0)
    """Small operations, as they were measured, that each counted kernel costs where a CPU computes."""
    step_seconds: float = Field(gt=0)
    """Fixed cost of a step: batch, learning rate, log, synchronisation."""
    straggling: float = Field(ge=0)
    """Share by which a step is longer for each factor e of machines that wait for the slowest of them."""


class FitErrors(FrozenConfig):
    """Errors on the measurements that it was fitted to: no claim about others."""

    rows: int
    median_abs_pct_error: float
    p90_abs_pct_error: float


class Calibration(FrozenConfig):
    """A dated set of constants."""

    date: datetime.date
    data: str
    """The measurements, and where they are from."""
    constants: Constants
    fitted: FitErrors | None = None
    seen: tuple[str, ...] = ()
    """`MeasuredRun.digest` of each measurement."""
    stands_for: dict[str, str] = {}
    """Chips without measurements, and the one whose efficiencies each gets."""
    machines: tuple[MeasuredMachine, ...] = ()
    """Measured machines that the catalog does not have: plans for them are made from these."""
    links: tuple[MeasuredLinks, ...] = ()
    """Collectives that the network suite measured by themselves, which count before those of `machines`."""

    def links_for(self, nodes: int, ranks: int) -> MeasuredLinks | None:
        """Those of as many ranks, or the nearest number, on one host or on several; None: there are none."""
        alike = [each for each in self.links if (each.hosts > 1) == (nodes > 1)]
        return min(alike, key=lambda each: abs(each.ranks - ranks), default=None)

    def machine_for(self, dtype: str, ranks: int, threads: int | None = None) -> MeasuredMachine | None:
        """The machine that was measured in this type by as many ranks, or the nearest one. dtype: `auto` is the type
        that multiplied matrices faster. threads: of each rank; None: not configured. Raises ValueError if the choice is
        ambiguous: several devices, or equally near numbers of ranks with different threads."""

        def distance(each: MeasuredMachine) -> tuple[bool, int, bool]:
            return each.dtype != dtype, abs(each.ranks - ranks), threads not in (None, each.threads)

        devices = sorted({each.device for each in self.machines})
        if len(devices) > 1:
            raise ValueError(f"it has machines of several devices: {', '.join(devices)}")
        nearest = min(map(distance, self.machines), default=None)
        nearby = [each for each in self.machines if distance(each) == nearest]
        if len({each.threads for each in nearby}) > 1:
            by = " and ".join(
                f"by {plural(each.ranks, 'rank')} with {plural(each.threads, 'thread')}" for each in nearby
            )
            raise ValueError(f"nearest to {plural(ranks, 'rank')} was measured {by}: set train.threads_per_rank")
        if dtype == "auto":
            return max(nearby, key=lambda each: each.matmul_flops, default=None)
        return nearby[0] if nearby else None


@functools.cache
def shipped_calibration(measured_kind: Literal["cpu", "cuda"] | None = None) -> Calibration:
    """None: fitted to the published measurements of `planner/validation/published.csv`. Machines that were measured:
    CPUs: fitted to steps on one. GPUs: the published ones, but the measured rates are reached in full, since they were
    measured at the job's own sizes."""
    if measured_kind != "cuda":
        return _read_shipped("published.json" if measured_kind is None else "cpu.json")
    calibration = shipped_calibration()
    rates = dict.fromkeys(("memory_efficiency", "inside_efficiency", "between_efficiency"), 1.0)
    efficiencies = ("matmul_efficiency", "attention_efficiency", "triton_attention_efficiency")
    within = dict.fromkeys(("matmul_traffic", "narrow_head"), NEGLIGIBLE)
    reached = {**rates, **within, **{name: {measured_kind: 1.0} for name in efficiencies}}
    constants = calibration.constants.model_copy(update=reached)
    return calibration.model_copy(update={"constants": constants, "stands_for": {}, "fitted": None})


def _read_shipped(name: str) -> Calibration:
    return Calibration.model_validate_json((resources.files(__package__) / name).read_text())


class Prior(Calibration):
    """Constants from physics, before any run is measured, and how certain each is."""

    spread: dict[str, float]
    """Standard deviation of a constant's logarithm, by name; one that is missing here is not fitted."""
    sources: dict[str, str]
    """By name."""


@functools.cache
def prior() -> Prior:
    """The table `prior.json`."""
    return Prior.model_validate_json((resources.files(__package__) / "prior.json").read_text())


def read_calibration(path: Path) -> Calibration:
    """Raises ConfigError if it is none."""
    try:
        return Calibration.model_validate_json(path.read_text())
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise ConfigError(f"{path}: no calibration: {str(error).splitlines()[0]}") from None


def efficiency_key(calibration: Calibration, chip: str) -> str:
    """The key of this chip's efficiencies in the constants. Raises ValueError if they have none."""
    name = calibration.stands_for.get(chip, chip)
    if name not in calibration.constants.matmul_efficiency:
        own = " and ".join(sorted({each.device for each in calibration.machines}))
        hint = f"; it is of {own}, measured where the benchmark named no instance type with that GPU" if own else ""
        raise ValueError(f"{chip}: the calibration of {calibration.date} has no efficiencies of it{hint}")
    return name
