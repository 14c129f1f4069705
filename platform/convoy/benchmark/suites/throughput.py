"""The throughput suite: a frozen baseline versus Convoy as it is configured, and what each technique does by itself.

Each technique is removed, or added, with all others as configured: its effect is the ratio of the two.
"""

import math
from collections.abc import Iterator
from typing import Any

from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.benchmark.memory_fit import has_room_next_to
from convoy.benchmark.results.values import BASELINE, SHARDED_BASELINE
from convoy.config.benchmark import BenchConfig
from convoy.config.data import has_document_ends
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig

OURS = "ours"

PLAIN = {"train": {"param_dtype": "fp32", "compile": False, "activation_checkpointing": "none"}}
"""What the baseline does, however the run is configured."""

PLAIN_SHARDED = {
    "train": {"param_dtype": "fp32", "reduce_dtype": "fp32", "compile": False},
    "parallel": {"strategy": "fsdp", "reshard_after_forward": True, "wrap": "block", "shard_size": None, "tensor": 1,
                 "pipeline": 1, "cpu_offload": False},
    "engine": {"name": "convoy"},
}  # fmt: skip
"""What the baseline does that shards the model. Recomputation stays as configured: without it there may be no room."""


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One group for each model; all ranks take part."""
    for model, run in runs.items():
        frozen = VariantSpec(name=BASELINE, kind="baseline", changes=PLAIN)
        ours = VariantSpec(name=OURS)
        variants = (frozen, *sharded_baseline(frozen, ours, run, ranks), ours, *techniques(run, ranks.all))
        yield SUITE.make_group(model, run, config.measure, variants, baseline=OURS)


def sharded_baseline(frozen: VariantSpec, ours: VariantSpec, run: RunConfig, ranks: Ranks) -> Iterator[VariantSpec]:
    """What people start from whose model has no room on one rank: the same model, sharded by accelerate. It is there
    wherever the frozen baseline is refused, so that ours is compared with one of the two."""
    if ranks.all == 1 or ranks.memory_bytes is None:
        return
    if not has_room_next_to(ours, frozen, run, ranks):
        yield VariantSpec(name=SHARDED_BASELINE, kind="sharded baseline", changes=PLAIN_SHARDED)


def techniques(run: RunConfig, ranks: int) -> Iterator[VariantSpec]:
    """Variants that differ from `run` in one thing each. ranks: of the gang."""
    train, optimizer = run.train, run.optimizer
    if isinstance(run.model, TransformerConfig):  # a custom model has its own attention
        fused = train.attention == "fused"
        name = "attention not fused" if fused else "fused attention"
        yield _train_variant(name, attention="plain" if fused else "fused")
    other = "fp32" if train.param_dtype == "bf16" else "bf16"
    yield _train_variant(other, param_dtype=other)
    if run.parallel.ranks_per_sample == 1:
        yield _train_variant("eager" if train.compile else "compiled", compile=not train.compile)
    name = "AdamW not fused" if optimizer.fused else "fused AdamW"
    yield VariantSpec(name=name, changes={"optimizer": {"fused": not optimizer.fused}})
    name, chunk = ("loss in chunks", 512) if train.loss_chunk_tokens == 0 else ("loss at once", 0)
    yield _train_variant(name, loss_chunk_tokens=chunk)
    yield from _accumulation_variants(run, ranks)
    yield from _data_variants(run)
    name, every = ("each 100th step logged", 100) if train.log_every_steps == 1 else ("each step logged", 1)
    yield _train_variant(name, log_every_steps=every)
    if train.activation_checkpointing == "none":
        yield _train_variant("recomputed", activation_checkpointing="full")


def _train_variant(name: str, **keys: Any) -> VariantSpec:
    return VariantSpec(name=name, changes={"train": keys})


def _accumulation_variants(run: RunConfig, ranks: int) -> Iterator[VariantSpec]:
    """The same global batch in twice as many passes; and with gradients reduced only after the last of them."""
    train = run.train
    batch = min(train.micro_batch, math.ceil(train.global_batch / ranks))  # of one pass, on the rank that has most
    if batch > 1:
        half = _train_variant(f"micro batch {batch // 2}", micro_batch=batch // 2)
        yield half
        if run.parallel.reduce_every_pass and run.parallel.strategy != "ddp" and ranks > 1:
            once = {**half.changes, "parallel": {"reduce_every_pass": False}}
            yield VariantSpec(name=f"{half.name}, reduced once", changes=once)


def _data_variants(run: RunConfig) -> Iterator[VariantSpec]:
    """Batches made ahead by a thread, or not; sequences of several documents, or padded ones of a single document."""
    for depth, name in ((0, "batches not made ahead"), (2, "2 batches made ahead")):
        if depth != run.train.prefetch_steps:
            yield _train_variant(name, prefetch_steps=depth)
    if not run.data.packing:
        yield VariantSpec(name="packed", changes={"data": {"packing": True}})
    elif has_document_ends(run.data):
        yield VariantSpec(name="padded", changes={"data": {"packing": False, "respect_documents": False}})


SUITE = Suite(
    name="throughput",
    title="Throughput",
    meaning="a frozen baseline versus Convoy as it is configured, and what each technique does by itself",
    groups=groups,
)
