"""Models without room on this host: what they would need, and the command that measures them on a cluster.

`benchmarks/run_benchmarks.py` measures the other models, and where there is no other, the one of the default benchmark.
"""

from collections.abc import Iterator
from typing import NamedTuple

from convoy.benchmark.groups import Ranks
from convoy.benchmark.memory_fit import NoRoomError
from convoy.benchmark.plan import plan_groups
from convoy.benchmark.results.case import Case
from convoy.config.benchmark import BenchConfig
from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.launch.benchmark.groups import unmeasured_case
from convoy.launch.benchmark.split import run_on_host, shares_of, world_of
from convoy.planner.pages.plan import plan_in_one_line
from convoy.planner.plan import plan

CLUSTERS = {"p4d": "p4d.24xlarge", "p5": "p5.48xlarge"}
"""Files of configs/bench/, and the machines that they start."""


class SplitBench(NamedTuple):
    """A benchmark by what has room on this host."""

    here: BenchConfig | None
    """With the models that have; None: none has."""
    lacking: dict[str, str]
    """The other models, each with what it needs."""


def split_by_room(config: BenchConfig) -> SplitBench:
    """Raises ConfigError for anything else that is wrong with it."""
    lacking: dict[str, str] = {}
    for model in config.models:
        try:
            shares_of(config.model_copy(update={"models": (model,)}))
        except NoRoomError as error:
            lacking[model] = str(error)
    left = tuple(model for model in config.models if model not in lacking)
    return SplitBench(config.model_copy(update={"models": left}) if left else None, lacking)


def refused_cases(config: BenchConfig, model: str, reason: str) -> list[Case]:
    """A case without figures for each that would have been measured of the model, so that the report names it."""
    alone = config.model_copy(update={"models": (model,)})
    groups = plan_groups(alone, {model: run_on_host(alone, model)}, Ranks(world_of(alone).size, 1))
    return [unmeasured_case(group, spec, "refused", reason) for group in groups for spec in group.variants]


def cluster_lines(config: BenchConfig, model: str) -> Iterator[str]:
    """What the model needs on as many machines of a cluster as the benchmark has nodes, and the command for them."""
    run = run_on_host(config, model)
    keys = (
        f"models=[{model}] run.cluster.nodes={run.cluster.nodes} run.train.global_batch={run.train.global_batch} "
        f"run.data.sequence_length={run.data.sequence_length}"
    )
    for name, instance_type in CLUSTERS.items():
        yield f"on {run.cluster.nodes} × {instance_type} (predicted): {_predicted(run, instance_type)}"
        yield f"  python flows/benchmark_flow.py --config bench configs/bench/{name}.yaml \\"
        yield f'      --config-value set "{keys} run.root=s3://YOUR-BUCKET/convoy" run --dry-run'


def _predicted(run: RunConfig, instance_type: str) -> str:
    """The plan of the job as it is configured, in bf16 and with recomputation, as on those clusters."""
    update = {"backend": "kubernetes", "instance_type": instance_type, "nproc_per_node": None}
    train = {"param_dtype": "bf16", "activation_checkpointing": "full", "compile": True}
    rented = run.model_copy(
        update={
            "cluster": run.cluster.model_copy(update=update),
            "train": run.train.model_copy(update=train),
            "root": "s3://YOUR-BUCKET/convoy",
        }
    )
    try:
        return plan_in_one_line(plan(rented).model_copy(update={"budget": None, "saves": None}))
    except (ConfigError, ValueError) as error:
        return f"not planned: {error}"
