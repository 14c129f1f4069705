"""The throughput suite: a frozen baseline against Convoy as it is configured, and what each technique does by itself.

Each technique is taken away, or put in, with all others as configured: its effect is the ratio of the two.
"""

import math
from collections.abc import Iterator

from convoy.bench.groups import Group, Ranks, VariantSpec
from convoy.config.bench import BenchConfig
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
            suite="throughput",
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
    passed = min(train.micro_batch, math.ceil(train.global_batch / ranks))  # at a time, by the rank that has most
    if passed > 1:
        half = passed // 2
        yield VariantSpec(name=f"micro batch {half}", changes={"train": {"micro_batch": half}})
    if train.activation_checkpointing == "none":
        yield VariantSpec(name="recomputed", changes={"train": {"activation_checkpointing": "full"}})
