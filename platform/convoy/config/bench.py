"""What a benchmark measures."""

from typing import Literal

from pydantic import Field

from convoy.config.base import Frozen
from convoy.config.run import RunConfig

SuiteName = Literal["throughput", "scaling"]


class MeasureConfig(Frozen):
    """How much is measured of each case."""

    rounds: int = Field(20, ge=6)
    """Blocks of each case; in a round each case of a group has one."""
    block_steps: int = Field(5, ge=1)
    """At least so many steps are in a block."""
    block_seconds: float = Field(0.5, gt=0)
    """And as many as fill so much time."""
    warm_up_most: int = Field(200, ge=16)
    """Steps after which warm-up ends though the times still drift; the result says so."""


class BenchConfig(Frozen):
    """Everything a benchmark needs to know. `run` is what all cases share; each suite changes its own part of it."""

    suites: tuple[SuiteName, ...] = ("throughput", "scaling")
    """What is measured."""
    models: tuple[str, ...] = ("tiny",)
    """Presets of `configs/models/`."""
    nodes: tuple[int, ...] = (1, 2)
    """Sizes of the gang in the scaling suite; the largest one is that of the others."""
    measure: MeasureConfig = MeasureConfig()
    run: RunConfig = RunConfig()
    """The job that is measured: data, batch, cluster, optimizer."""
