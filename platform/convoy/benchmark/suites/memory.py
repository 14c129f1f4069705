"""The memory suite: what each way to save memory saves, and what it costs in throughput."""

from collections.abc import Iterator
from typing import Any

from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.config.benchmark import BenchConfig
from convoy.config.run import RunConfig
from convoy.stats.interval import FEWEST

REFERENCE = "as configured"

LOSS_CHUNK_TOKENS = 512
"""Chunk of the loss, where the run computes the loss at once."""

_OFFLOADED = {"cpu_offload": True}

_RECOMPUTED = {"none": "nothing recomputed", "selective": "selectively recomputed", "full": "recomputed"}


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One group for each model, with half as many rounds: memory is the same in each."""
    measure = config.measure.model_copy(update={"rounds": max(FEWEST, config.measure.rounds // 2)})
    for model, run in runs.items():
        yield SUITE.make_group(model, run, measure, variants_of(run))


def variants_of(run: RunConfig) -> Iterator[VariantSpec]:
    """The run as configured; the run with one technique more, or without one that is configured; and with all."""
    train, parallel = run.train, run.parallel
    yield VariantSpec(name=REFERENCE)
    for mode, name in _RECOMPUTED.items():
        if mode != train.activation_checkpointing and not (mode == "selective" and parallel.wrap == "linear"):
            yield VariantSpec(name=name, changes={"train": {"activation_checkpointing": mode}})
    other = "fp32" if train.param_dtype == "bf16" else "bf16"
    yield VariantSpec(name=other, changes={"train": {"param_dtype": other}})
    if parallel.wrap == "linear":
        yield VariantSpec(name="by block", changes={"parallel": {"wrap": "block"}})
    elif train.activation_checkpointing != "selective":
        yield VariantSpec(name="by linear", changes={"parallel": {"wrap": "linear"}})
    name, chunk = ("loss in chunks", LOSS_CHUNK_TOKENS) if train.loss_chunk_tokens == 0 else ("loss at once", 0)
    yield VariantSpec(name=name, changes={"train": {"loss_chunk_tokens": chunk}})
    offloads = parallel.ranks_per_sample == 1  # the configuration has no offload of a model that is cut
    if offloads:
        yield VariantSpec(name="CPU offload", changes={"parallel": _OFFLOADED}, needs_gpu=True)
    yield VariantSpec(name="all savers", changes=changes_of_all_savers(run))
    if offloads:
        together = {**changes_of_all_savers(run), "parallel": {"wrap": "linear", **_OFFLOADED}}
        yield VariantSpec(name="all savers and CPU offload", changes=together, needs_gpu=True)


def changes_of_all_savers(run: RunConfig) -> dict[str, Any]:
    """Changes to the run: all techniques at once that work on every device."""
    chunk = run.train.loss_chunk_tokens or LOSS_CHUNK_TOKENS
    train = {"activation_checkpointing": "full", "param_dtype": "bf16", "loss_chunk_tokens": chunk}
    return {"train": train, "parallel": {"wrap": "linear"}}


SUITE = Suite(
    name="memory",
    title="Memory techniques",
    meaning="what each way to save memory saves, and what it costs in throughput",
    groups=groups,
    measures=frozenset({"memory"}),
    compares_memory=True,
)
