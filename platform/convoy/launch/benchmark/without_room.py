"""Models without room on this host: what they would need, and the command that measures them on a cluster.

`benchmarks/run_benchmarks.py` measures the other models, and where there is no other, the one of the default benchmark.
"""

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from convoy.benchmark.groups import Ranks
from convoy.benchmark.memory_fit import NoRoomError
from convoy.benchmark.plan import plan_groups, run_of
from convoy.benchmark.results.case import Case
from convoy.config.benchmark import BenchConfig, add_presets_key, read_bench, resolve_bench
from convoy.config.errors import ConfigError
from convoy.config.loader import configs_folder, read_overrides
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


def cluster_lines(config: BenchConfig, model: str, words: str = "") -> Iterator[str]:
    """What the model needs on as many machines of a cluster as the benchmark has nodes, and the command for them. What
    is predicted is what the command trains. words: `key=value` settings of the benchmark, as text."""
    run = run_on_host(config, model)
    sizes = {
        "models": f"[{model}]",
        "run.cluster.nodes": run.cluster.nodes,
        "run.train.global_batch": run.train.global_batch,
        "run.data.sequence_length": run.data.sequence_length,
        "run.root": "s3://YOUR-BUCKET/convoy",
    }
    own = [word for word in shlex.split(words) if not _is_of_host(word) and word.partition("=")[0] not in sizes]
    settings = " ".join([*map(_quoted, own), *(f"{key}={value}" for key, value in sizes.items())])
    quoted = shlex.quote(settings) if set(settings) & set('"$`\\!') else f'"{settings}"'
    for name, instance_type in CLUSTERS.items():
        yield f"on {run.cluster.nodes} × {instance_type} (predicted): {_predicted(name, model, settings)}"
        yield f"  python flows/benchmark_flow.py --config bench configs/bench/{name}.yaml \\"
        yield f"      --config-value set {quoted} run --dry-run"


def _quoted(word: str) -> str:
    """As `read_overrides` reads it; brackets need no quotes there."""
    return word if shlex.split(word) == [word] else shlex.quote(word)


def _is_of_host(word: str) -> bool:
    """Whether the setting is on the machines here, which a cluster's file replaces."""
    key = word.partition("=")[0]
    return key == "run.cluster" or key.startswith("run.cluster.")


def _predicted(name: str, model: str, settings: str) -> str:
    """The plan of the job of a file of configs/bench/ with these settings."""
    try:
        base = read_bench((configs_folder() / "bench" / f"{name}.yaml").read_text())
        run = run_of(resolve_bench(base, add_presets_key(read_overrides(settings))), model)
        return plan_in_one_line(plan(run).model_copy(update={"budget": None, "saves": None}))
    except (ConfigError, ValueError) as error:
        return f"not planned: {error}"
