"""The second group of the strategies suite: what cuts the model itself, beside fsdp.

What ranks share must be divisible by them, and the stages of a pipeline cannot tie the embedding to the head. So that
all cases train the same, the group's model is that of the preset with a head of its own and, where 2 does not divide
them, the next larger number of attention heads that fits its width.
"""

import math
from collections.abc import Iterator
from typing import Any

from convoy.benchmark.groups import Group, Ranks, VariantSpec
from convoy.benchmark.results.case import CHANGED
from convoy.config.benchmark import MeasureConfig
from convoy.config.loader import Tree, merged
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig

CUT = 2
"""Ranks that share a product, and stages."""


def group(model: str, run: RunConfig, ranks: Ranks, measure: MeasureConfig) -> Group | None:
    """None where the model, or an odd number of ranks, cannot be cut."""
    shape = shape_of(run.model) if isinstance(run.model, TransformerConfig) else None
    if shape is None or ranks.all % CUT:
        return None
    # Blocks that are cut are not compiled.
    named = {**shape, "name": f"{run.model.name}{CHANGED}"}  # nothing of it is told of the preset
    changes: Tree = {"model": named, "train": {"compile": False}, "evaluation": {"sample_tokens": 0}}
    cuttable = RunConfig.model_validate(merged(run.model_dump(mode="json"), changes))
    in_node = run.cluster.backend == "local" or ranks.per_node % CUT == 0
    variants = tuple(variants_of(cuttable, ranks.all, in_node=in_node))
    return Group(
        name=f"strategies-{model}-model-parallel",
        suite="strategies",
        baseline=variants[0].name,
        variants=variants,
        run=cuttable,
        measure=measure,
    )


def shape_of(model: TransformerConfig) -> dict[str, Any] | None:
    """What must differ of the model, as keys of its configuration; None: no number of heads fits."""
    if model.ff_width % CUT or model.n_layers < CUT or model.init_from is not None:
        return None
    if model.n_heads % CUT == 0 and model.kv_heads % CUT == 0:
        return {"tied_embeddings": False}
    wide = 2 * CUT  # so that a head's width is even, as rotary positions need
    heads = [n for n in range(model.n_heads, model.d_model + 1) if n % CUT == 0 and model.d_model % (wide * n) == 0]
    return {"tied_embeddings": False, "n_heads": heads[0], "n_kv_heads": None} if heads else None


def variants_of(run: RunConfig, ranks: int, *, in_node: bool = True) -> Iterator[VariantSpec]:
    """fsdp over all ranks; products shared by two; two stages; and with 8 ranks or more all three at once.

    in_node: two neighbours are on one node, as those that share products must be.
    """
    cuts = [(1, 1), (CUT, 1), (1, CUT), *([(CUT, CUT)] if ranks % CUT**3 == 0 else [])]
    for tensor, pipeline in cuts:
        most = math.ceil(run.train.global_batch / (ranks // (tensor * pipeline)))
        if most < pipeline or (tensor > 1 and not in_node):
            continue
        spread = {"strategy": "fsdp", "shard_size": None, "cpu_offload": False}  # with which nothing is cut
        yield VariantSpec(
            name=name_of(ranks // (tensor * pipeline), tensor, pipeline),
            changes={
                "parallel": {**spread, "tensor": tensor, "pipeline": pipeline},
                "train": {"micro_batch": min(run.train.micro_batch, most // pipeline)},
            },
        )


def name_of(shards: int, tensor: int, pipeline: int) -> str:
    """Name of a case: each kind with more than one rank, and how many."""
    kinds = {"fsdp": shards, "tensor": tensor, "pipeline": pipeline}
    return " × ".join(f"{kind} {n}" for kind, n in kinds.items() if n > 1)
