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
    """Rounds; in each, every case of a group measures one block. Intervals shrink with the square root of the rounds,
    and time grows with them: 20 to 40, of one second each, show differences of a few per cent."""
    block_steps: int = Field(2, ge=1)
    """Smallest number of steps in a block."""
    block_seconds: float = Field(0.4, gt=0)
    """A block has as many steps as fill this time, if that is more."""
    warm_up_most: int = Field(24, ge=16)
    """Steps after which warm-up ends even if step times still drift; the result then says so."""
    pin: bool = True
    """Pin each rank to its own share of the host's cores."""
    machine_seconds: float = Field(1.0, ge=0)
    """On machines that the catalog does not have: time that ranks spend before the first block, for each type of
    number, to measure what the planner needs. 0: none, and no step's time is predicted."""


NETWORK_VARIABLES = ("NCCL_", "GLOO_", "FI_")
"""Beginnings of the variables that an environment may set: those that only say how ranks talk to each other."""

Text = Annotated[str, Field(coerce_numbers_to_str=True)]
"""`NCCL_IB_DISABLE: 1` is a number to YAML."""


class EnvironmentConfig(Frozen):
    """Variables that determine how the ranks of a gang communicate."""

    name: str = Field(min_length=1)
    """Name of its case."""
    set: dict[str, Text | None] = {}
    """Variables of NCCL_*, GLOO_* and FI_* that every rank starts with; null: unset, even if the machine sets it.
    Others stay as the machine sets them."""

    @field_validator("set")
    @classmethod
    def _of_the_network(cls, variables: dict[str, str | None]) -> dict[str, str | None]:
        for name in variables:
            if not name.startswith(NETWORK_VARIABLES):
                raise ValueError(f"{name}: must begin with {', '.join(NETWORK_VARIABLES)}")
        return variables


class SyncConfig(Frozen):
    """The share of synchronisation in a step, and environments compared in gangs that take turns."""

    share: bool = True
    """Compare training together with the same number of one-rank trainings at once, each of which holds a whole model.
    False: compare only environments, as for a model that no single rank can hold."""
    environments: tuple[EnvironmentConfig, ...] = ()
    """The others are compared with the first; empty: nothing is compared."""
    claims: Literal["rdma"] | None = None
    """What the others are claimed to have and the first lacks; a speedup below 1.5× is then reported as not
    significant."""
    pairs: int = Field(6, ge=6)
    """Gangs of each environment. The unit of comparison is the gang, and an interval needs six."""

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
    """Ranks that write at the same time; null: as many as were measured."""
    storage_gb_per_second: float | None = Field(None, gt=0)
    """Rate of the storage for all of them together, in 10^9 bytes per second, such as the purchased throughput of FSx
    for Lustre (its TiB × its MB/s per TiB); null: unknown, and no limit."""
    least_mb_per_writer: int = Field(128, ge=0)
    """If each rank writes less than this, in 10^6 bytes, the state is filled up to it when rates are measured: with a
    small state the few requests determine the rate, which says nothing about a large one."""


class CampaignConfig(Frozen):
    """A training on spot machines, computed with the measured stalls and recoveries."""

    days: float = Field(30, gt=0)
    """Duration of the campaign, in days."""
    instance_type: str | None = None
    """Machine of each node, for its price and its interruption rate; null: the one on which saves were measured, or
    p4d.24xlarge as an example if that has no name (`cluster.instance_type`)."""
    region: str | None = None
    """AWS region of the price; null: that of the benchmark (`cluster.region`)."""
    nodes: int | None = Field(None, ge=1)
    """Machines of the gang, which stops when one of them is reclaimed; null: as many as saves were measured on, and 4
    if the machine is another one."""
    taken_per_month: float | None = Field(None, gt=0, lt=1)
    """Share of such machines that are reclaimed within a month; null: the upper end of the catalog's band."""
    bad_day_hours: float | None = Field(3.0, gt=0)
    """Mean time until a machine of the gang is reclaimed on a bad day, which is computed too; null: no bad day."""
    announced_share: float = Field(1.0, ge=0, le=1)
    """Share of reclaimed machines that have notice; AWS gives notice on a best-effort basis."""
    notice_seconds: float = Field(120.0, ge=0)
    """Time between notice and end; what is not saved by then is lost."""
    replacement_seconds: float = Field(600.0, ge=0)
    """Time until another machine replaces a lost one, added to each measured restart. The default is an assumption: a
    machine is available at once, and boots and loads its image in ten minutes."""
    seed: int = 0
    """Not used any more; campaigns used to be simulated."""


class RecoveryConfig(Frozen):
    """Which faults are injected into gangs on this host, and the campaign that is computed with the results."""

    drills: tuple[str, ...] = Field(("node-kill", "spot-notice"), min_length=1)
    """Drills to run, from the list of `convoy drill`."""
    trials: int = Field(1, ge=1)
    """Trials of each drill; more give narrower intervals."""
    nodes: int = Field(2, ge=1)
    """Nodes of a drill's gang, one process each."""
    campaign: CampaignConfig = CampaignConfig()


class BenchConfig(Frozen):
    """Everything a benchmark needs to know. The defaults equal `configs/bench/default.yaml`, except for `run`."""

    suites: tuple[str, ...] = Field(
        ("throughput", "scaling", "strategies", "memory", "utilisation", "sync", "checkpoint", "recovery"), min_length=1
    )
    """Suites to run, of `benchmark/suites/`."""
    models: tuple[str, ...] = Field(("tiny",), min_length=1)
    """Models to measure: presets of `configs/models/`."""
    presets: dict[str, dict[str, Any]] = {}
    """Do not set it: the models themselves, filled in when the configuration is read, because machines of a cluster
    have no presets."""
    measure: MeasureConfig = MeasureConfig()
    sync: SyncConfig = SyncConfig()
    run: dict[str, Any] = {}
    """The job that all cases share, with the keys and defaults of `configs/train/`; each suite changes its part."""
    peers: tuple[PeerName, ...] = ()
    """Libraries that the strategies suite compares with Convoy: torch's DDP, accelerate's FSDP2, DeepSpeed's ZeRO-1 to
    -3."""
    predict: PredictConfig = PredictConfig()
    """The job whose saves and loads the checkpoint suite predicts."""
    recovery: RecoveryConfig = RecoveryConfig()
    """What the recovery suite does, and the campaign that is computed with what it shows."""
    schedule: str | None = None
    """Schedule of the flow on Argo Workflows, in cron's five fields."""


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
