"""FSDP2: every parameter sharded over the mesh, gathered block by block."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from convoy.config.parallel import ParallelConfig
from convoy.config.train import TrainConfig
from convoy.parallel.mesh import sharding
from convoy.parallel.pipeline import Elsewhere, keep_stage
from convoy.parallel.recompute import recomputed
from convoy.parallel.tensor import share_products

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def parallelize(model: nn.Module, mesh: DeviceMesh, parallel: ParallelConfig, train: TrainConfig) -> FSDPModule:
    """Apply pipeline and tensor parallelism, recomputation, compilation and sharding, in this order, to a model on the
    meta device or on the host.

    model: has `blocks`, a list of its repeated layers, and may have `embed` and `head`. The optimizer must be built
    from the result: one built before would hold the unsharded parameters and train nothing.
    """
    if "pipeline" in (mesh.mesh_dim_names or ()):
        keep_stage(model, mesh["pipeline"])
    if "tensor" in (mesh.mesh_dim_names or ()):
        share_products(model, mesh["tensor"])
    mesh = sharding(mesh)
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[train.param_dtype], reduce_dtype=DTYPES[train.reduce_dtype])
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
    for name, end in _untied_ends(model).items():
        # The head ends forward and begins backward: freeing it between would be waste.
        reshard = name != "head" and parallel.reshard_after_forward
        fully_shard(end, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def _blocks(model: nn.Module) -> list[nn.Module]:
    blocks: Any = model.blocks
    return list(dict.fromkeys(_flat(blocks)))


def _flat(blocks: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Lists of blocks within lists have no forward of their own to gather for."""
    for block in blocks:
        if isinstance(block, nn.ModuleList):
            yield from _flat(block)
        elif not isinstance(block, Elsewhere):
            yield block


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` where `old` stands, in whichever container of the model holds it."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # named_children would give a shared block only once
            if child is old and parent is not new:
                setattr(parent, name, new)


def _parts(block: nn.Module) -> list[nn.Module]:
    """Children of a block that are worth a gather of their own."""
    return [child for child in block.children() if any(p.ndim >= 2 for p in child.parameters())]


def _untied_ends(model: nn.Module) -> dict[str, nn.Module]:
    """Embedding and head, unless they share weights: then the root gathers them together."""
    there = {name: end for name, end in model.named_children() if not isinstance(end, Elsewhere)}
    ends = {name: end for name, end in there.items() if name in ("embed", "head")}
    owned = [{id(p) for p in end.parameters()} for end in ends.values()]
    shared = set.intersection(*owned) if len(owned) == 2 else set()
    return {} if shared else ends
