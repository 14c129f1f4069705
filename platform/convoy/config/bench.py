"""What a benchmark measures. The defaults are the default benchmark, `configs/bench/default.yaml`; only what its `run`
sets is no default."""

from typing import Any, Literal, get_args

from pydantic import Field, ValidationError

from convoy.config.base import Frozen
from convoy.config.bench_recovery import PredictConfig, RecoveryConfig
from convoy.config.errors import ConfigError, one_line
from convoy.config.load import Tree, mapping, merged, with_preset
from convoy.config.sync import SyncConfig

PeerName = Literal["torch", "accelerate", "deepspeed"]

SuiteName = Literal["throughput", "scaling", "strategies", "memory", "utilisation", "sync", "checkpoint", "recovery"]


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


class BenchConfig(Frozen):
    """Everything a benchmark needs to know. The defaults are what `configs/bench/default.yaml` says, but for `run`."""

    suites: tuple[SuiteName, ...] = Field(get_args(SuiteName), min_length=1)
    """What is measured."""
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
    """What the recovery suite does, and the campaign that is simulated with what it shows."""
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
