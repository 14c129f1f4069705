"""Which cases are measured beside each other: a group is one gang, whose variants take turns. Imports no torch."""

from typing import Any, Literal, NamedTuple

from pydantic import Field

from convoy.config.base import Frozen
from convoy.config.bench import MeasureConfig
from convoy.config.load import Tree, merged
from convoy.config.run import RunConfig

PeerKind = Literal["torch DDP", "accelerate FSDP2", "DeepSpeed ZeRO-1", "DeepSpeed ZeRO-2", "DeepSpeed ZeRO-3"]
"""Ways of other libraries to spread our model; `bench/peers.py` tells what each needs."""

Kind = Literal["ours", "baseline"] | PeerKind


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
    baseline: str | None = None
    """Name of the variant that this one is compared with; None: the group's."""
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
    command: str = ""
    """What was asked for, such as the command line."""

    def baseline_of(self, spec: VariantSpec) -> str | None:
        """What a case is compared with; None: it is not."""
        return None if spec.name == self.baseline else spec.baseline or self.baseline
