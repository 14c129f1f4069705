"""What a benchmark consists of: suites, their groups (each is one gang), and the variants that take turns in a group.

Imports no torch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from convoy.benchmark.results.values import RDMA_CLAIMED
from convoy.config.base import FrozenConfig
from convoy.config.benchmark import (
    BenchConfig,
    EnvironmentConfig,
    MeasureConfig,
    PredictConfig,
    RecoveryConfig,
    SyncConfig,
)
from convoy.config.errors import ConfigError, first_problem_line
from convoy.config.loader import Tree, merge_config
from convoy.config.network import NetworkConfig
from convoy.config.run import RunConfig

if TYPE_CHECKING:
    from convoy.benchmark.analysis.report import BenchReport
    from convoy.benchmark.results.case import Case
    from convoy.catalog.prices import PriceBook
    from convoy.display.page import Block

ENDLESS = 10**6
"""Optimizer steps of a measured job: no measurement reaches its end."""

Measurement = Literal["memory", "state", "utilisation", "communication", "collectives"]
"""What a gang measures on top of its blocks: the memory of each case (always measured on GPUs; on a CPU a profiled step
takes seconds), the bytes of a rank's weights and optimizer state, the use of cores and GPUs with the parts of a step,
the bytes that training sends with the rate of its links, or each collective by itself."""

PeerKind = Literal["torch DDP", "accelerate FSDP2", "DeepSpeed ZeRO-1", "DeepSpeed ZeRO-2", "DeepSpeed ZeRO-3"]
"""Ways of other libraries to distribute our model; `benchmark/suites/peers.py` has what each needs."""

FrameworkKind = Literal["JAX", "MLX", "Horovod"]
"""Frameworks that train a decoder of the same form; `benchmark/suites/frameworks.py` has what each needs."""

Kind = Literal["ours", "baseline", "sharded baseline", "saving"] | PeerKind | FrameworkKind


class Ranks(NamedTuple):
    """The ranks of a gang."""

    all: int
    per_node: int
    memory_bytes: int | None = None
    """Memory of each rank: its GPU's, or its share of its host's; None: not known."""
    host_bytes: int | None = None
    """On GPUs, each rank's share of its host's memory; None: there are no GPUs, and `memory_bytes` is that share."""

    @property
    def on_gpus(self) -> bool:
        """Whether they have memory of their own besides their hosts'."""
        return self.host_bytes is not None


class VariantSpec(FrozenConfig):
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
    """Values of its case that are not measured, by documented names."""
    not_measured: dict[str, str] = {}
    """What cannot be measured of its case, and why."""
    needed_for: FrameworkKind | None = None
    """The framework that it is measured for: where its packages are missing, there is nothing to compare."""
    refused: str = ""
    """Why it is refused wherever the gang runs, in one line; empty: it is not."""
    needs_gpu: bool = False
    """On machines without one the variant is left out, and the group's baseline has the reason."""
    at_once: bool = False
    """All ranks work, in as many independent trainings of `ranks` each as possible; else there is one training, and the
    other ranks wait."""
    pin: bool | None = None
    """Whether each rank is pinned to its own share of the host's cores in this variant's turns; None: as `measure` of
    the group. Only in the utilisation suite do ranks move between turns."""

    def config(self, base: RunConfig) -> RunConfig:
        """The run of this variant. base: of its group. Raises ConfigError if that run allows no such variant."""
        tree: Tree = merge_config(base.model_dump(mode="json"), self.changes)
        try:
            return RunConfig.model_validate(tree)
        except ValidationError as error:
            raise ConfigError(f"run.{first_problem_line(error, RunConfig)} (the case {self.name})") from None

    def pins_ranks(self, measure: MeasureConfig) -> bool:
        """Whether each rank is pinned to its own cores in this variant's turns."""
        return measure.pin if self.pin is None else self.pin


class RefusedCase(FrozenConfig):
    """A case that is refused before anything starts."""

    spec: VariantSpec
    reason: str
    """One line."""


class Group(FrozenConfig):
    """One gang; or gangs in several environments that take turns, whose cases are then the environments'."""

    name: str
    """Unique in a benchmark."""
    suite: str
    baseline: str | None
    """Name of the variant that the others are compared with; None: nothing is compared."""
    variants: tuple[VariantSpec, ...] = Field(min_length=1)
    refused: tuple[RefusedCase, ...] = ()
    """Further cases."""
    whole: bool = False
    """Its cases are compared in more than pairs with the baseline, so they stay in one gang."""
    run: RunConfig
    """What its variants share; `cluster` is the size of the gang."""
    measure: MeasureConfig
    measures: frozenset[Measurement] = frozenset()
    """Those of its suite."""
    predict: PredictConfig | None = None
    """Set by the checkpoint suite."""
    recovery: RecoveryConfig | None = None
    """Set by the suite of that name, whose variants are drills."""
    stores: bool = False
    """Set by the checkpoint suite, whose variants are then stores: below each one's `root` a training saves, one store
    after the other, and a store that fails costs only its own case."""
    network: NetworkConfig | None = None
    """Set by the network suite, whose variants are algorithms of one collective, or measurements of pairs."""
    lab: str = ""
    """The hosts and links of the lab in which its ranks are, and nothing else measured; empty: this is no lab."""
    command: str = ""
    """The command that started the benchmark."""
    environment: EnvironmentConfig | None = None
    """The environment of every rank; None: the machine's."""
    compared: SyncConfig | None = None
    """The environments of its one variant, in gangs that take turns (`suites/environments.py`); None: one gang, in the
    machine's environment."""

    @property
    def case_specs(self) -> tuple[VariantSpec, ...]:
        """Its cases: each variant, or the one variant in each environment."""
        if self.compared is None:
            return self.variants
        first, *others = (each.name for each in self.compared.environments)
        claimed = {RDMA_CLAIMED: 1.0} if self.compared.claims == "rdma" else {}
        only = self.variants[0]
        return (
            only.model_copy(update={"name": first}),
            *(only.model_copy(update={"name": name, "values": {**only.values, **claimed}}) for name in others),
        )

    def baseline_of(self, spec: VariantSpec) -> str | None:
        """Name of the case that a case is compared with, if any."""
        return None if spec.name == self.baseline else spec.baseline or self.baseline


@dataclass(frozen=True)
class Suite:
    """Something that a benchmark compares, from its groups to the sections of its page.

    To add one, write its file in `suites/` and list its object in `suites/registry.py`.
    """

    name: str
    """Key in a benchmark's configuration and in its results."""
    title: str
    """Title of its groups on the page."""
    meaning: str
    """A line on what it compares."""
    groups: Callable[[BenchConfig, dict[str, RunConfig], Ranks], Iterator[Group]]
    """Its gangs, from the configuration, the run of each model by the model's name, and the ranks of a gang."""
    fewest_ranks: int = 1
    """Least size of a gang; a smaller gang has no groups of the suite."""
    measures: frozenset[Measurement] = frozenset()
    titles: Mapping[str, str] = field(default_factory=dict)
    """Titles of groups whose names do not begin with the suite's, by their prefix."""
    figures: "Callable[[Sequence[Case], PriceBook], Mapping[str, object]]" = lambda cases, prices: {}
    """Fields of the report that it adds to the figures of each case, from all cases of a benchmark."""
    comparison: "Callable[[BenchReport], tuple[Block, ...]] | None" = None
    """Sections that take the place of a table for each group; None: the tables are its comparison."""
    sections: "Callable[[BenchReport], tuple[Block, ...]]" = lambda report: ()
    """Further sections of the page, below costs and memory."""
    compares_memory: bool = False
    """Below the memory peaks, the page has a table of what each case saves."""

    def make_group(
        self, model: str, run: RunConfig, measure: MeasureConfig, variants: Iterable[VariantSpec], **more_fields: Any
    ) -> Group:
        """The group of a model, whose baseline is the first variant. more_fields: further fields, or other values."""
        variants = tuple(variants)
        fields = {"name": f"{self.name}-{model}", "baseline": variants[0].name, **more_fields}
        return Group(suite=self.name, run=run, measure=measure, variants=variants, **fields)
