"""Which cases are measured beside each other: a group is one gang, whose variants take turns. Imports no torch."""

from typing import Any, Literal, NamedTuple

from pydantic import Field

from convoy.config.base import Frozen
from convoy.config.bench import MeasureConfig
from convoy.config.bench_recovery import PredictConfig, RecoveryConfig
from convoy.config.load import Tree, merged
from convoy.config.run import RunConfig

Kind = Literal["ours", "baseline", "saving"]


class Ranks(NamedTuple):
    """Of a gang."""

    all: int
    per_node: int


class VariantSpec(Frozen):
    """One case of a group."""

    name: str
    kind: Kind = "ours"
    changes: dict[str, Any] = {}
    """Keys of the run that differ from the group's, as a tree."""
    ranks: int | None = Field(None, ge=1)
    """How many of the gang's ranks train together, a divisor of all; None: all."""
    values: dict[str, float] = {}
    """That its case has beside what is measured, by documented names."""
    at_once: bool = False
    """All ranks are at work, in as many independent trainings of `ranks` as there are; else one of them, and the other
    ranks wait."""

    def config(self, base: RunConfig) -> RunConfig:
        """Of this variant."""
        tree: Tree = merged(base.model_dump(mode="json"), self.changes)
        return RunConfig.model_validate(tree)


class Group(Frozen):
    """One gang."""

    name: str
    """Unique in a benchmark."""
    suite: str
    baseline: str | None
    """Name of the variant that the others are compared with; None: they are not."""
    variants: tuple[VariantSpec, ...] = Field(min_length=1)
    run: RunConfig
    """What they share; `cluster` says how large the gang is."""
    measure: MeasureConfig
    predict: PredictConfig | None = None
    """Of the checkpoint suite."""
    recovery: RecoveryConfig | None = None
    """Of the suite of that name, whose variants are drills."""
    command: str = ""
    """What was asked for, such as the command line."""
