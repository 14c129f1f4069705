"""What a benchmark measures. The defaults are the default benchmark, `configs/bench/default.yaml`, except for its
`cases` and `run`."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from convoy.config.base import FrozenConfig
from convoy.config.errors import ConfigError, first_problem_line
from convoy.config.loader import Tree, expand_preset, merge_config, read_tree
from convoy.config.network import NetworkConfig

PeerName = Literal["torch", "accelerate", "deepspeed"]


class MeasureConfig(FrozenConfig):
    """The amount of measurement of each case, and its cores."""

    rounds: int = Field(24, ge=6)
    """Blocks of each case; in a round, each case of a group runs one. Intervals shrink with the square root of the
    rounds, and time grows with them: 20 to 40 rounds resolve differences of a few per cent."""
    block_steps: int = Field(2, ge=1)
    """Least number of steps in a block."""
    block_seconds: float = Field(0.4, gt=0)
    """Least length of a block."""
    warm_up_most: int = Field(24, ge=16)
    """Steps after which warm-up ends even if the times still drift; the result says so."""
    pin: bool = True
    """Each rank is pinned to its own share of the host's cores."""
    machine_seconds: float = Field(1.0, ge=0)
    """On machines that the catalog does not have: how long ranks measure, before the first block and for each type of
    number, what the planner predicts from. 0: not at all, and no step time is predicted."""


NETWORK_VARIABLES = ("NCCL_", "GLOO_", "FI_")
"""Prefixes of the variables that an environment may set: those that affect only how ranks communicate."""

Text = Annotated[str, Field(coerce_numbers_to_str=True)]
"""`NCCL_IB_DISABLE: 1` is a number to YAML."""


class EnvironmentConfig(FrozenConfig):
    """How the ranks of a gang communicate."""

    name: str = Field(min_length=1)
    """Name of its case."""
    set: dict[str, Text | None] = {}
    """Variables NCCL_*, GLOO_* and FI_* of every rank, from its start; null: unset, even if the machine sets it. All
    other variables are the machine's."""

    @field_validator("set")
    @classmethod
    def _check_prefixes(cls, variables: dict[str, str | None]) -> dict[str, str | None]:
        for name in variables:
            if not name.startswith(NETWORK_VARIABLES):
                raise ValueError(f"{name}: must begin with {', '.join(NETWORK_VARIABLES)}")
        return variables


class SyncConfig(FrozenConfig):
    """The share of synchronisation in a step, and environments that are compared in gangs that take turns."""

    share: bool = True
    """Whether training together is compared with as many trainings of one rank at once, each of which holds a whole
    model; false: only environments are compared, for example for a model that no rank can hold."""
    environments: tuple[EnvironmentConfig, ...] = ()
    """The others are compared with the first; empty: nothing is compared."""
    claims: Literal["rdma"] | None = None
    """What the others are claimed to have, and the first has not: a speedup below 1.5× is then reported as not
    significant."""
    pairs: int = Field(6, ge=6)
    """Gangs of each environment: each is one figure, and an interval needs six."""

    @model_validator(mode="after")
    def _check_environments(self) -> "SyncConfig":
        names = [environment.name for environment in self.environments]
        if len(names) == 1 or len(set(names)) < len(names):
            raise ValueError(f"environments = {', '.join(names)}: must be two or more, of different names")
        if len({tuple(sorted(each.set.items(), key=str)) for each in self.environments}) < len(names):
            raise ValueError(f"environments = {', '.join(names)}: must set different variables")
        if not self.share and not names:
            raise ValueError("share = false: only with environments, or nothing is measured")
        if self.claims is not None and not names:
            raise ValueError(f"claims = {self.claims}: only with environments that it is claimed of")
        return self


class PredictConfig(FrozenConfig):
    """The job whose saves and loads are predicted from measured rates."""

    writers: int | None = Field(None, ge=1)
    """Ranks that write at once; null: those of the measured gang."""
    storage_gb_per_second: float | None = Field(None, gt=0)
    """Throughput of the storage for all of them together, in 10^9 bytes, such as that of FSx for Lustre (its TiB × its
    MB/s per TiB); null: not known, and no limit."""
    least_mb_per_writer: int = Field(128, ge=0)
    """Least size of each rank's part of the state where rates are measured, in 10^6 bytes; a smaller state is padded:
    its rates would be those of a few requests, and not hold for a large one."""


class CampaignConfig(FrozenConfig):
    """A training on spot machines, computed with the stalls and recoveries that were measured."""

    days: float = Field(30, gt=0)
    """Duration of the campaign, in days."""
    instance_type: str | None = None
    """Machine of each node, for its price and for how often it is reclaimed; null: the one on which saves were
    measured, or if that has no name (`cluster.instance_type`), p4d.24xlarge as an example."""
    region: str | None = None
    """AWS region of the price; null: that of the benchmark (`cluster.region`)."""
    nodes: int | None = Field(None, ge=1)
    """Machines; the gang stops when one of them is reclaimed. null: as many as saves were measured on, or 4 of another
    type."""
    taken_per_month: float | None = Field(None, gt=0, lt=1)
    """Share of such machines that are reclaimed within a month; null: the upper end of the catalog's band."""
    bad_day_hours: float | None = Field(3.0, gt=0)
    """Mean time until a machine of the gang is reclaimed on a bad day, which is computed too; null: it is not."""
    announced_share: float = Field(1.0, ge=0, le=1)
    """Share of interruptions with notice, which AWS gives as far as it can."""
    notice_seconds: float = Field(120.0, ge=0)
    """Time between notice and end: progress that is not saved by then is lost."""
    replacement_seconds: float = Field(600.0, ge=0)
    """Time until a replacement machine runs, added to each measured restart. The default is an assumption: a machine is
    available at once, and boots and loads its image in ten minutes."""
    seed: int = 0
    """Not used any more; campaigns used to be simulated."""


class RecoveryConfig(FrozenConfig):
    """The faults that are injected into gangs on this host, and the campaign that is computed from the results."""

    drills: tuple[str, ...] = Field(("node-kill", "spot-notice"), min_length=1)
    """Names, as `convoy drill` lists them."""
    trials: int = Field(1, ge=1)
    """Trials of each drill; more trials narrow the intervals."""
    nodes: int = Field(2, ge=1)
    """Nodes of a drill's gang, one process each."""
    campaign: CampaignConfig = CampaignConfig()


class WorkloadsConfig(FrozenConfig):
    """The models of the workloads suite."""

    names: tuple[str, ...] = Field(("resnet50", "bert-large", "vit-large", "gpt2-xl", "detection"), min_length=1)
    """Models to measure."""
    size: Literal["small", "full"] = "small"
    """small: twins of a few layers that a CPU trains. full: the models themselves, of GPT-2 XL 12 of its 48 layers."""


class BenchConfig(FrozenConfig):
    """The whole configuration of a benchmark. The defaults are those of `configs/bench/default.yaml`, except for
    `cases` and `run`."""

    suites: tuple[str, ...] = Field(
        ("throughput", "scaling", "strategies", "sync", "checkpoint", "recovery"), min_length=1
    )
    """Suites to run, of `benchmark/suites/`."""
    cases: dict[str, tuple[str, ...]] | None = None
    """By suite: the names of the cases to measure, next to those that they are compared with. A suite without a list
    measures all of its cases, which a dry run prints; null: all suites do."""
    models: tuple[str, ...] = Field(("tiny",), min_length=1)
    """Models to measure: presets of `configs/models/`."""
    presets: dict[str, dict[str, Any]] = {}
    """Do not set: the models themselves, filled in where the configuration is read, since machines of a cluster have no
    presets."""
    measure: MeasureConfig = MeasureConfig()
    sync: SyncConfig = SyncConfig()
    network: NetworkConfig = NetworkConfig()
    workloads: WorkloadsConfig = WorkloadsConfig()
    run: dict[str, Any] = {}
    """The job that all cases share, as keys of `configs/train/`, with their defaults: each suite changes its part."""
    peers: tuple[PeerName, ...] = ()
    """Further libraries that the strategies suite measures: torch's DDP, accelerate's FSDP2, DeepSpeed's ZeRO-1 to
    -3."""
    stores: tuple[str, ...] = ()
    """Stores that the checkpoint suite compares, one after the other: `local` (the run's own `root`), absolute paths of
    folders that exist, `s3://bucket/prefix`, `gs://bucket/prefix`. A store that fails is a row with the reason, and the
    others are measured all the same. Empty: no stores are compared."""
    predict: PredictConfig = PredictConfig()
    """The job whose saves and loads the checkpoint suite predicts."""
    recovery: RecoveryConfig = RecoveryConfig()
    """The drills of the recovery suite, and the campaign that is computed from their results."""
    schedule: str | None = None
    """When the deployed flow runs, in cron's five fields; on Argo Workflows only."""

    @model_validator(mode="after")
    def _stores_differ(self) -> "BenchConfig":
        if len({store.rstrip("/") for store in self.stores}) < len(self.stores):
            raise ValueError(f"stores = {', '.join(self.stores)}: each may be named once")
        return self


def read_bench(text: str) -> Tree:
    """The keys of a YAML file, with the presets of its models. Raises ConfigError."""
    return add_presets_key({"models": ["tiny"], **read_tree("the configuration", text)})


def add_presets_key(tree: Tree) -> Tree:
    """The tree with the presets of the models that it names. Raises ConfigError."""
    models = tree.get("models")
    names = [name for name in models if isinstance(name, str)] if isinstance(models, list) else []
    return {**tree, "presets": {name: expand_preset({"model": name})["model"] for name in names}} if names else tree


def resolve_bench(base: Tree, overrides: Tree) -> BenchConfig:
    """The checked configuration: defaults, then `base`, then `overrides`. Raises ConfigError with one line."""
    below, above = (tree.get("run") or {} for tree in (base, overrides))
    together = merge_config(base, overrides)
    if isinstance(below, dict) and isinstance(above, dict):  # merged by the rules of a run's own keys
        together = {**together, "run": merge_config(below, above)}
    try:
        return BenchConfig.model_validate(together)
    except ValidationError as error:
        raise ConfigError(first_problem_line(error, BenchConfig)) from None
