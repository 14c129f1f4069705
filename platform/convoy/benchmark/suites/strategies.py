"""The strategies suite: the same model, data and loss under each way to distribute them over the ranks.

A second group cuts the model itself. What ranks share must be divisible by them, and the stages of a pipeline cannot
tie the embedding to the head. So that all its cases train the same model, that model is the preset's with an untied
head and, where 2 does not divide them, the next larger number of attention heads that fits its width.
"""

import math
from collections.abc import Iterator
from typing import Any

from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.benchmark.memory_estimate import with_largest_size
from convoy.benchmark.results.case import CHANGED
from convoy.benchmark.suites import peers
from convoy.config.benchmark import BenchConfig, MeasureConfig
from convoy.config.loader import Tree, merge_config
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig

CUT = 2
"""Ranks that share a matrix product, and stages of a pipeline."""


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """Two groups for each model: what distributes it, and what cuts it, where it can be cut."""
    for model, run in runs.items():
        ours = variants_of(ranks.all, wrap_linear=run.train.activation_checkpointing != "selective")
        variants = (*ours, *peers.variants_of(config.peers), *peers.engines_of(config.peers))
        yield SUITE.make_group(model, run, config.measure, (with_largest_size(spec, run, ranks) for spec in variants))
        if cut := model_parallel_group(model, run, ranks, config.measure):
            yield cut


def variants_of(ranks: int, *, wrap_linear: bool = True) -> Iterator[VariantSpec]:
    """ddp, then what shards: fully, without the second gather, by linear layers, and within half of the ranks."""
    yield _variant("ddp", strategy="ddp")
    yield _variant("fsdp")
    yield _variant("fsdp, gathered once", reshard_after_forward=False)
    if wrap_linear:
        yield _variant("fsdp by linear", wrap="linear")
    if ranks > 2 and ranks % 2 == 0:
        half = ranks // 2
        yield _variant(f"hsdp, {half} ranks", strategy="hsdp", shard_size=half)


def _variant(name: str, **keys: Any) -> VariantSpec:
    fsdp = {"strategy": "fsdp", "reshard_after_forward": True, "wrap": "block", "shard_size": None}
    return VariantSpec(name=name, changes={"parallel": {**fsdp, "tensor": 1, "pipeline": 1, **keys}})


def model_parallel_group(model: str, run: RunConfig, ranks: Ranks, measure: MeasureConfig) -> Group | None:
    """The group that cuts the model; None if the model cannot be cut, or the number of ranks is odd."""
    shape = cuttable_shape(run.model) if isinstance(run.model, TransformerConfig) else None
    if shape is None or ranks.all % CUT:
        return None
    named = {**shape, "name": f"{run.model.name}{CHANGED}"}  # figures of the preset do not hold for it
    # Blocks that are cut are not compiled.
    changes: Tree = {"model": named, "train": {"compile": False}, "evaluation": {"sample_tokens": 0}}
    cuttable = RunConfig.model_validate(merge_config(run.model_dump(mode="json"), changes))
    in_node = run.cluster.backend == "local" or ranks.per_node % CUT == 0
    specs = model_parallel_variants(cuttable, ranks.all, in_node=in_node)
    variants = (with_largest_size(spec, cuttable, ranks) for spec in specs)
    return SUITE.make_group(f"{model}-model-parallel", cuttable, measure, variants)


def cuttable_shape(model: TransformerConfig) -> dict[str, Any] | None:
    """Keys of the model's configuration that must change so that it can be cut; None if no number of heads fits."""
    if model.ff_width % CUT or model.n_layers < CUT or model.init_from is not None:
        return None
    if model.n_heads % CUT == 0 and model.kv_heads % CUT == 0:
        return {"tied_embeddings": False}
    wide = 2 * CUT  # so that a head's width is even, as rotary positions need
    heads = [n for n in range(model.n_heads, model.d_model + 1) if n % CUT == 0 and model.d_model % (wide * n) == 0]
    return {"tied_embeddings": False, "n_heads": heads[0], "n_kv_heads": None} if heads else None


def model_parallel_variants(run: RunConfig, ranks: int, *, in_node: bool = True) -> Iterator[VariantSpec]:
    """fsdp over all ranks; products shared by two; two stages; and with 8 ranks or more all three at once.

    in_node: two neighbouring ranks are on one node, as ranks that share products must be.
    """
    cuts = [(1, 1), (CUT, 1), (1, CUT), *([(CUT, CUT)] if ranks % CUT**3 == 0 else [])]
    for tensor, pipeline in cuts:
        most = math.ceil(run.train.global_batch / (ranks // (tensor * pipeline)))
        if most < pipeline or (tensor > 1 and not in_node):
            continue
        uncut = {"strategy": "fsdp", "shard_size": None, "cpu_offload": False}
        kinds = {"fsdp": ranks // (tensor * pipeline), "tensor": tensor, "pipeline": pipeline}
        yield VariantSpec(
            name=" × ".join(f"{kind} {n}" for kind, n in kinds.items() if n > 1),
            changes={
                "parallel": {**uncut, "tensor": tensor, "pipeline": pipeline},
                "train": {"micro_batch": min(run.train.micro_batch, most // pipeline)},
            },
        )


SUITE = Suite(
    name="strategies",
    title="Strategies side by side",
    meaning="the same model, data and loss under each way to distribute them over the ranks",
    groups=groups,
    fewest_ranks=2,  # on a single rank all are alike
    measures=frozenset({"memory", "state"}),
)
