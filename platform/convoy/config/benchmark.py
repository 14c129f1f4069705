"""What a benchmark measures. The defaults are the default benchmark, `configs/bench/default.yaml`; only what its `run`
sets is no default."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from convoy.config.base import Frozen
from convoy.config.errors import ConfigError, one_line
from convoy.config.loader import Tree, mapping, merged, with_preset

PeerName = Literal["torch", "accelerate", "deepspeed"]


class MeasureConfig(Frozen):
    """How much is measured of each case, and on which cores."""

    rounds: int = Field(8, ge=6)
    """Blocks of each case; in a round each case of a group has one. Intervals shrink with the square root of the
    rounds, and time grows with them: 20 to 40, of a second each, tell differences of a few per cent."""
    block_steps: int = Field(2, ge=1)
    """At least so many steps are in a block."""
    block_seconds: float = Field(0.4, gt=0)
    """And as many as fill so much time."""
    warm_up_most: int = Field(24, ge=16)
    """Steps after which warm-up ends though the times still drift; the result says so."""
    pin: bool = True
    """Each rank keeps to its own share of the host's cores."""
    machine_seconds: float = Field(1.0, ge=0)
    """Before the first block, on machines that the catalog does not have: for how long ranks measure what the planner
    predicts from, for each type of number. 0: not at all, and no step's time is predicted."""


NETWORK_VARIABLES = ("NCCL_", "GLOO_", "FI_")
"""Beginnings of the variables that an environment may set: those that only say how ranks talk to each other."""

Text = Annotated[str, Field(coerce_numbers_to_str=True)]
"""`NCCL_IB_DISABLE: 1` is a number to YAML."""


class EnvironmentConfig(Frozen):
    """How the ranks of a gang talk to each other."""

    name: str = Field(min_length=1)
    """Of its case."""
    set: dict[str, Text | None] = {}
    """Variables of NCCL_*, GLOO_* and FI_*, which every rank has from its start; null: not set, though the machine has
    it. Those that are not named are as the machine has them."""

    @field_validator("set")
    @classmethod
    def _of_the_network(cls, variables: dict[str, str | None]) -> dict[str, str | None]:
        for name in variables:
            if not name.startswith(NETWORK_VARIABLES):
                raise ValueError(f"{name}: must begin with {', '.join(NETWORK_VARIABLES)}")
        return variables


class SyncConfig(Frozen):
    """What synchronisation takes of a step, and environments beside each other in gangs that take turns."""

    share: bool = True
    """Whether training together is compared with as many trainings of one rank at once, each of which holds a whole
    model; false: environments alone are compared, as of a model that no rank can hold."""
    environments: tuple[EnvironmentConfig, ...] = ()
    """The first is what the others are compared with; empty: nothing is compared."""
    claims: Literal["rdma"] | None = None
    """What the others have and the first has not, as it was promised: less than 1.5× is then told not to be
    significant."""
    pairs: int = Field(6, ge=6)
    """Gangs of each environment: what is told apart is gangs, and an interval needs six."""

    @model_validator(mode="after")
    def _some_to_compare(self) -> "SyncConfig":
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


class PredictConfig(Frozen):
    """The job whose saves and loads are predicted from what was measured."""

    writers: int | None = Field(None, ge=1)
    """Ranks that write at once; null: as many as were measured."""
    storage_gb_per_second: float | None = Field(None, gt=0)
    """What the storage gives all of them together, in 10^9 bytes, such as the throughput that was bought with FSx for
    Lustre (its TiB × its MB/s per TiB); null: not known, and no limit."""
    least_mb_per_writer: int = Field(128, ge=0)
    """A state of which each rank writes less, in 10^6 bytes, is filled up to that where rates are measured: in a small
    one they are those of its few requests, and tell nothing of a large one."""


class CampaignConfig(Frozen):
    """A training on spot machines, computed with the stalls and recoveries that were measured."""

    days: float = Field(30, gt=0)
    """It lasts so long."""
    instance_type: str | None = None
    """Machine of each node, for its price and for how often it is taken away; null: the one on which saves were
    measured, and where that has no name (`cluster.instance_type`), p4d.24xlarge as an example."""
    region: str | None = None
    """AWS region of the price; null: that of the benchmark (`cluster.region`)."""
    nodes: int | None = Field(None, ge=1)
    """The gang stops when one of them is taken away; null: as many machines as saves were measured on, and 4 of
    others."""
    taken_per_month: float | None = Field(None, gt=0, lt=1)
    """Share of such machines that are taken away within a month; null: as the catalog has it, the upper end of its
    band."""
    bad_day_hours: float | None = Field(3.0, gt=0)
    """Mean time until a machine of the gang is taken away on a bad day, which is computed too; null: it is not."""
    announced_share: float = Field(1.0, ge=0, le=1)
    """Of those, that have notice; AWS gives it as far as it can."""
    notice_seconds: float = Field(120.0, ge=0)
    """Between notice and end: what is not saved by then is lost."""
    replacement_seconds: float = Field(600.0, ge=0)
    """Until there is another machine in its place, added to each restart that was measured. The default is assumed: a
    machine is to be had at once, and boots and loads its image in ten minutes."""
    seed: int = 0
    """No longer used: campaigns were simulated before."""


class RecoveryConfig(Frozen):
    """Which faults are put into gangs of this host, and the campaign that is computed with what they show."""

    drills: tuple[str, ...] = Field(("node-kill", "spot-notice"), min_length=1)
    """As `convoy drill` lists them."""
    trials: int = Field(1, ge=1)
    """Of each drill; more tell more."""
    nodes: int = Field(2, ge=1)
    """Of a drill's gang, one process each."""
    campaign: CampaignConfig = CampaignConfig()


class BenchConfig(Frozen):
    """Everything a benchmark needs to know. The defaults are what `configs/bench/default.yaml` says, but for `run`."""

    suites: tuple[str, ...] = Field(
        ("throughput", "scaling", "strategies", "memory", "utilisation", "sync", "checkpoint", "recovery"), min_length=1
    )
    """What is measured; each is a suite of `benchmark/suites/`."""
    models: tuple[str, ...] = Field(("tiny",), min_length=1)
    """Presets of `configs/models/`."""
    presets: dict[str, dict[str, Any]] = {}
    """Not to be written: the models themselves, filled in where the configuration is read, for machines of a cluster
    have no presets."""
    measure: MeasureConfig = MeasureConfig()
    sync: SyncConfig = SyncConfig()
    run: dict[str, Any] = {}
    """The job that all cases share, as keys of `configs/train/`, with their defaults: each suite changes its part."""
    peers: tuple[PeerName, ...] = ()
    """Libraries that the strategies suite measures beside our own: torch's DDP, accelerate's FSDP2, DeepSpeed's ZeRO-1
    to -3."""
    predict: PredictConfig = PredictConfig()
    """The job whose saves and loads the checkpoint suite predicts."""
    recovery: RecoveryConfig = RecoveryConfig()
    """What the recovery suite does, and the campaign that is computed with what it shows."""
    schedule: str | None = None
    """When the flow runs by itself, in cron's five fields; where Argo Workflows has it."""


def read_bench(text: str) -> Tree:
    """The keys of a YAML file, with the presets of its models. Raises ConfigError."""
    return with_presets({"models": ["tiny"], **mapping("the configuration", text)})


def with_presets(tree: Tree) -> Tree:
    """The tree with the presets of the models that it names. Raises ConfigError."""
    models = tree.get("models")
    names = [name for name in models if isinstance(name, str)] if isinstance(models, list) else []
    return {**tree, "presets": {name: with_preset({"model": name})["model"] for name in names}} if names else tree


def resolve_bench(base: Tree, overrides: Tree) -> BenchConfig:
    """The checked configuration: defaults, then `base`, then `overrides`. Raises ConfigError with one line."""
    below, above = (tree.get("run") or {} for tree in (base, overrides))
    together = merged(base, overrides)
    if isinstance(below, dict) and isinstance(above, dict):  # merged by the rules of a run's own keys
        together = {**together, "run": merged(below, above)}
    try:
        return BenchConfig.model_validate(together)
    except ValidationError as error:
        raise ConfigError(one_line(error, BenchConfig)) from None
