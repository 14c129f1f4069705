"""FSDP2: every parameter sharded over the mesh, gathered block by block."""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from convoy.config.parallel import ParallelConfig
from convoy.config.train import TrainConfig
from convoy.parallel.recompute import recomputed

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def parallelize(model: nn.Module, mesh: DeviceMesh, parallel: ParallelConfig, train: TrainConfig) -> FSDPModule:
    """Apply recomputation, compilation and sharding, in this order, to a model on the meta device or on the host.

    model: has `blocks`, a list of its repeated layers, and may have `embed` and `head`. The optimizer must be built
    from the result: one built before would hold the unsharded parameters and train nothing.
    """
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[train.param_dtype], reduce_dtype=DTYPES[train.reduce_dtype], cast_forward_inputs=False
    )
    for block in _blocks(model):
        wrapped = recomputed(block, train.activation_checkpointing)
        if wrapped is not block:
            _replace(model, block, wrapped)
        if train.compile:
            wrapped.compile(fullgraph=parallel.wrap == "block")
        if parallel.wrap == "linear":
            for part in _parts(block):
                fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=parallel.reshard_after_forward)
        fully_shard(wrapped, mesh=mesh, mp_policy=policy, reshard_after_forward=parallel.reshard_after_forward)
    for end in _untied_ends(model):
        # Gathered for the end of forward and needed again at the start of backward: freeing them between is waste.
        fully_shard(end, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def _blocks(model: nn.Module) -> list[nn.Module]:
    blocks: Any = model.blocks
    return list(blocks)


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` where `old` stands, in whichever container of the model holds it."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if child is old and parent is not new:
                setattr(parent, name, new)


def _parts(block: nn.Module) -> list[nn.Module]:
    """Children of a block that are worth a gather of their own."""
    return [child for child in block.children() if any(p.ndim >= 2 for p in child.parameters())]


def _untied_ends(model: nn.Module) -> list[nn.Module]:
    """Embedding and head, unless they share weights: then the root gathers them together."""
    ends = [getattr(model, name) for name in ("embed", "head") if isinstance(getattr(model, name, None), nn.Module)]
    owned = [{id(p) for p in end.parameters()} for end in ends]
    shared = set.intersection(*owned) if len(owned) == 2 else set()
    return [] if shared else ends
