"""The throughput suite: a frozen baseline against Convoy as it is configured, and what each technique does by itself.

Each technique is taken away, or put in, with all others as configured: its effect is the ratio of the two.
"""

import math
from collections.abc import Iterator
from typing import Any

from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.benchmark.needs import FA3
from convoy.config.benchmark import BenchConfig
from convoy.config.data import names_ends
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig

BASELINE = "baseline"

PLAIN = {"train": {"param_dtype": "fp32", "compile": False, "activation_checkpointing": "none"}}
"""What the baseline does, whatever the run is configured to do."""

OURS = "ours"


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One for each model. runs: by the model's name. ranks: of the gang, all of which take part."""
    for model, run in runs.items():
        yield Group(
            name=f"throughput-{model}",
            suite=SUITE.name,
            baseline=OURS,
            variants=(
                VariantSpec(name=BASELINE, kind="baseline", changes=PLAIN),
                VariantSpec(name=OURS),
                *techniques(run, ranks.all),
            ),
            run=run,
            measure=config.measure,
        )


def techniques(run: RunConfig, ranks: int) -> Iterator[VariantSpec]:
    """Each with one thing other than in `run`. ranks: of the gang."""
    train, optimizer = run.train, run.optimizer
    yield from _attention(run)
    other = "fp32" if train.param_dtype == "bf16" else "bf16"
    yield VariantSpec(name=other, changes={"train": {"param_dtype": other}})
    if run.parallel.shared_by == 1:
        name = "eager" if train.compile else "compiled"
        yield VariantSpec(name=name, changes={"train": {"compile": not train.compile}})
    yield VariantSpec(
        name="fused AdamW" if not optimizer.fused else "AdamW not fused",
        changes={"optimizer": {"fused": not optimizer.fused}},
    )
    whole = train.loss_chunk_tokens == 0
    yield VariantSpec(
        name="loss in chunks" if whole else "loss at once",
        changes={"train": {"loss_chunk_tokens": 512 if whole else 0}},
    )
    yield from _accumulation(run, ranks)
    yield from _data(run)
    yield VariantSpec(**_LOGGED_RARELY if train.log_every_steps == 1 else _LOGGED)
    if train.activation_checkpointing == "none":
        yield VariantSpec(name="recomputed", changes={"train": {"activation_checkpointing": "full"}})


_LOGGED: dict[str, Any] = {"name": "each step logged", "changes": {"train": {"log_every_steps": 1}}}
_LOGGED_RARELY: dict[str, Any] = {"name": "each 100th step logged", "changes": {"train": {"log_every_steps": 100}}}


def _attention(run: RunConfig) -> Iterator[VariantSpec]:
    """A custom model has its own."""
    if isinstance(run.model, TransformerConfig):
        fused = run.train.attention == "fused"
        yield VariantSpec(
            name="attention not fused" if fused else "fused attention",
            changes={"train": {"attention": "plain" if fused else "fused"}},
        )
        yield VariantSpec(name="FlashAttention-3", needs=FA3)


def _accumulation(run: RunConfig, ranks: int) -> Iterator[VariantSpec]:
    """The same global batch in twice as many passes; and so that gradients are reduced after the last of them only."""
    train = run.train
    passed = min(train.micro_batch, math.ceil(train.global_batch / ranks))  # at a time, by the rank that has most
    if passed > 1:
        half = {"train": {"micro_batch": passed // 2}}
        yield VariantSpec(name=f"micro batch {passed // 2}", changes=half)
        if run.parallel.reduce_every_pass and run.parallel.strategy != "ddp" and ranks > 1:
            once = {**half, "parallel": {"reduce_every_pass": False}}
            yield VariantSpec(name=f"micro batch {passed // 2}, reduced once", changes=once)


def _data(run: RunConfig) -> Iterator[VariantSpec]:
    """Batches made ahead by a thread, or not; sequences of several documents, or padded ones of a single document."""
    for depth, name in ((0, "batches not made ahead"), (2, "2 batches made ahead")):
        if depth != run.train.prefetch_steps:
            yield VariantSpec(name=name, changes={"train": {"prefetch_steps": depth}})
    if not run.data.packing:
        yield VariantSpec(name="packed", changes={"data": {"packing": True}})
    elif names_ends(run.data):
        yield VariantSpec(name="padded", changes={"data": {"packing": False, "respect_documents": False}})


SUITE = Suite(
    name="throughput",
    title="Throughput",
    meaning="a frozen baseline against Convoy as it is configured, and what each technique does by itself",
    groups=groups,
)
