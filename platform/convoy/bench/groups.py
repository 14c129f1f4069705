"""Which cases are measured beside each other: a group is one gang, whose variants take turns. Imports no torch."""

from typing import Any, Literal, NamedTuple

from pydantic import Field

from convoy.bench.needs import Need
from convoy.config.base import Frozen
from convoy.config.bench import MeasureConfig
from convoy.config.load import Tree, merged
from convoy.config.run import RunConfig

Kind = Literal["ours", "baseline"]


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
    needs: Need | None = None
    """Where that is missing the variant is left out, and the group's baseline tells why; None: it runs anywhere."""
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
    command: str = ""
    """What was asked for, such as the command line."""
