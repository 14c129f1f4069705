"""The frameworks suite: the same small decoder trained by Convoy and by other frameworks, which bring their own
arithmetic, optimizer and communication.

Each framework has a gang of its own, in which its cases take turns with Convoy's: one process of a rank holds both, and
the gang gives the framework its ranks and addresses. Imports no torch.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from convoy.benchmark.analysis.frameworks import SUITE as NAME
from convoy.benchmark.analysis.frameworks import framework_figures
from convoy.benchmark.analysis.report import BenchReport, FrameworkFigures
from convoy.benchmark.groups import FrameworkKind, Group, Kind, Ranks, Suite, VariantSpec
from convoy.benchmark.pages.cases import charts, describe_group, table
from convoy.benchmark.results.values import INDEPENDENT
from convoy.config.benchmark import BenchConfig
from convoy.config.errors import yaml_value
from convoy.config.loader import merge_config
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.display import formatting
from convoy.display.page import Block, Column, Heading, Text, columns

CONVOY = "Convoy"
ALONE = ", alone"
"""Ends the name of a case in which each rank trains by itself, at the same time as all others."""

PACKAGES: Mapping[Kind, tuple[str, ...]] = {"JAX": ("jax", "flax", "optax"), "MLX": ("mlx",), "Horovod": ("horovod",)}
"""Packages that each needs."""

EXTRAS: Mapping[Kind, str] = {"JAX": "jax", "MLX": "mlx"}
"""Extras that install them."""

MISSING: Mapping[Kind, str] = {
    "Horovod": "horovod is not installed, and pip cannot: on 2026-11-28, 0.28.1 did not build against torch 2.13.0 "
    "(its CMakeLists.txt sets C++14: 'C++17 or later compatible compiler is required to use PyTorch'); "
    "docs/guides/benchmarks.md says which two lines to change",
}
"""Why a framework may be missing that no extra installs."""

_FORM: dict[str, Any] = {"norm": "layernorm", "positions": "learned", "mlp": "gelu", "bias": True}
_FORM |= {"tied_embeddings": True, "dropout": 0.0, "init_from": None}
"""What the frameworks' decoders compute: GPT-2's form."""


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """For each model a gang of each framework, all in fp32, with one pass of a step and whole weights on each rank."""
    for model, run in runs.items():
        shared = _with_one_pass(run, ranks.all)
        for kind in ("JAX", "MLX", "Horovod"):
            variants = variants_of(kind, shared.train.micro_batch, why_refused(run, ranks))
            yield SUITE.make_group(model, shared, config.measure, variants, name=f"{kind.lower()}-{model}", whole=True)


def _with_one_pass(run: RunConfig, ranks: int) -> RunConfig:
    parallel = {"strategy": "ddp", "shard_size": None, "tensor": 1, "pipeline": 1, "cpu_offload": False}
    train = {"param_dtype": "fp32", "micro_batch": max(1, run.train.global_batch // ranks)}
    return RunConfig.model_validate(merge_config(run.model_dump(mode="json"), {"parallel": parallel, "train": train}))


def why_refused(run: RunConfig, ranks: Ranks) -> str:
    """Why no framework can train this run, in one line that names the key; empty: they can."""
    if ranks.on_gpus:
        return "the frameworks suite measures CPUs only"
    if not isinstance(run.model, TransformerConfig):
        return "model.build: the frameworks have no model of one's own"
    for key, value in {**_FORM, "n_kv_heads": run.model.n_heads}.items():
        own = run.model.kv_heads if key == "n_kv_heads" else getattr(run.model, key)
        if own != value:
            return f"model.{key} = {yaml_value(own)}: must be {yaml_value(value)}, as the frameworks' decoders have it"
    if run.data.respect_documents:
        return "run.data.respect_documents = true: must be false, since the frameworks' attention has no documents"
    if run.train.global_batch % ranks.all:
        return f"run.train.global_batch = {run.train.global_batch}: must be a multiple of the ranks, {ranks.all}"
    return ""


def variants_of(kind: FrameworkKind, each: int, refused: str = "") -> Iterator[VariantSpec]:
    """Convoy's cases and the framework's, all ranks together and each alone. each: sequences of a rank in a step."""
    alone = {"ranks": 1, "at_once": True, "values": {INDEPENDENT: 1.0}, "changes": {"train": {"global_batch": each}}}
    shared: dict[str, Any] = {"needed_for": kind, "refused": refused}
    yield VariantSpec(name=CONVOY, **shared)
    yield VariantSpec(name=CONVOY + ALONE, **shared, **alone)
    yield VariantSpec(name=kind, kind=kind, **shared)
    yield VariantSpec(name=kind + ALONE, kind=kind, baseline=CONVOY + ALONE, **shared, **alone)


_HOW = (
    "Frameworks train the same decoder in fp32, from the same weights, with the same batches, schedule, clipping and "
    "AdamW, and whole weights on each rank. Their own are arithmetic, optimizer and communication: JAX compiles a step "
    "as a whole and sums gradients over gloo; MLX evaluates it lazily and sums over its ring of TCP sockets; Horovod "
    "reduces the gradients of Convoy's torch model over gloo. The cases of a table took turns, block by block, in one "
    "gang. Alone: each rank by itself, all at the same time."
)
_PROFILE = (
    "Share of synchronisation: how much longer a step takes together than alone, as in the section on gradient "
    "synchronisation. Convoy's parts are those of its steps, where reduction overlaps backward; synchronisation is "
    "what they take longer than alone. A framework's parts are those of one further step after each block, which waits "
    "for each part in turn, so that they may add up to more than its step. Horovod's reduction overlaps backward: its "
    "synchronisation is what is left of it after backward. Compilation is in no step."
)


def comparison(report: BenchReport) -> tuple[Block, ...]:
    """A table of rates, and a profile of the step, for each framework."""
    blocks: list[Block] = []
    for group in report.groups:
        if group.suite == SUITE.name and any(case.rate for case in group.cases):
            profiles = [each for each in report.frameworks if each.group == group.name]
            blocks += [Text(describe_group(group), quiet=True), *charts(group), table(group), _profile(profiles)]
    return (Heading(SUITE.title), Text(_HOW, quiet=True), *blocks, Text(_PROFILE, quiet=True)) if blocks else ()


def _profile(profiles: list[FrameworkFigures]) -> Block:
    def part(title: str, name: str) -> Column[FrameworkFigures]:
        return Column(title, lambda each: each.parts.get(name), formatting.duration)

    return columns(
        profiles,
        Column("Case", lambda each: each.case),
        Column("Step", lambda each: each.step_seconds and formatting.estimate(each.step_seconds, formatting.duration)),
        part("Forward", "forward"),
        part("Backward", "backward"),
        part("Synchronisation", "sync"),
        part("Update", "update"),
        Column("Share of synchronisation", lambda each: _share(each)),
        Column("Compilation", lambda each: each.compile_seconds, formatting.duration),
        Column("Losses apart by at most", lambda each: each.loss_difference, lambda apart: f"{apart:.1e}"),
        drop_empty=True,
    )


def _share(figures: FrameworkFigures) -> str:
    return figures.why if figures.share is None else formatting.estimate(figures.share, formatting.percent)


SUITE = Suite(
    name=NAME,
    title="Other frameworks",
    meaning="the same decoder trained by Convoy, JAX, MLX and Horovod, on CPUs",
    groups=groups,
    fewest_ranks=2,
    titles={"jax": "Next to JAX", "mlx": "Next to MLX", "horovod": "Next to Horovod"},
    figures=lambda cases, _: {"frameworks": framework_figures(cases)},
    comparison=comparison,
)
