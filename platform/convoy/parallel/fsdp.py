"""FSDP2: every parameter sharded over the mesh, gathered by block, by linear layer, or all of them at once."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from convoy.config.errors import ConfigError
from convoy.config.parallel import ParallelConfig
from convoy.config.train import TrainConfig
from convoy.parallel.activation_checkpointing import apply_activation_checkpointing
from convoy.parallel.batch_norm import run_batch_norm_in_fp32
from convoy.parallel.gloo import set_cpu_collectives
from convoy.parallel.mesh import data_submesh
from convoy.parallel.pipeline import OnOtherStage, keep_stage
from convoy.parallel.tensor import apply_tensor_parallel

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def parallelize(
    model: nn.Module, mesh: DeviceMesh, parallel: ParallelConfig, train: TrainConfig, *, across_hosts: bool = False
) -> FSDPModule:
    """Apply pipeline and tensor parallelism, recomputation, compilation and sharding, in this order, to a model on the
    meta device or on the host.

    model: has `blocks`, a list of its repeated layers, and may have `embed` and `head`. The optimizer must be built
    from the result: one built before would hold the unsharded parameters and train nothing. across_hosts: not all ranks
    are on one. Raises ConfigError where there is no GPU from which to offload.
    """
    if "pipeline" in (mesh.mesh_dim_names or ()):
        keep_stage(model, mesh["pipeline"])
    if "tensor" in (mesh.mesh_dim_names or ()):
        apply_tensor_parallel(model, mesh["tensor"])
    mesh = data_submesh(mesh)
    policy = mixed_precision(train)
    if train.param_dtype == "bf16":
        run_batch_norm_in_fp32(model)
    shard = partial(fully_shard, mesh=mesh, mp_policy=policy, offload_policy=_offload_policy(parallel, mesh))
    reshard, one_unit = (
        parallel.reshard_after_forward,
        parallel.shards_as_one_fsdp_unit(on_cpu=mesh.device_type == "cpu"),
    )
    for block, wrapped in wrap_and_compile_blocks(model, train, fullgraph=parallel.wrap == "block"):
        if one_unit:
            continue
        if parallel.wrap == "linear":
            for layer in dict.fromkeys(_linear_layers(block)):
                shard(layer, reshard_after_forward=reshard)
        shard(wrapped, reshard_after_forward=reshard)
    for name, end in {} if one_unit else _untied_embed_and_head(model).items():
        # The head ends forward and begins backward: freeing it between would be waste.
        shard(end, reshard_after_forward=name != "head" and reshard)
    sharded = shard(model)
    if mesh.device_type == "cpu":
        set_cpu_collectives(model, across_hosts=across_hosts)
    return sharded


def shard_device(device: torch.device, parallel: ParallelConfig) -> torch.device:
    """Where shards of weights, gradients and optimizer state are, of ranks that compute on `device`."""
    return torch.device("cpu") if parallel.cpu_offload else device


def _offload_policy(parallel: ParallelConfig, mesh: DeviceMesh) -> OffloadPolicy:
    if not parallel.cpu_offload:
        return OffloadPolicy()
    if mesh.device_type == "cpu":
        raise ConfigError("parallel.cpu_offload = true: there is no GPU: everything is in host memory already")
    return CPUOffloadPolicy()


def mixed_precision(train: TrainConfig) -> MixedPrecisionPolicy:
    """Types in which FSDP2 computes and reduces; it keeps the weights in fp32."""
    return MixedPrecisionPolicy(param_dtype=DTYPES[train.param_dtype], reduce_dtype=DTYPES[train.reduce_dtype])


def wrap_and_compile_blocks(
    model: nn.Module, train: TrainConfig, *, fullgraph: bool = True
) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Apply recomputation and compilation to each block, and return it with what replaces it: to be sharded
    before the next one is prepared, or not at all.

    fullgraph: each block can be compiled without a break.
    """
    blocks: Any = model.blocks
    for block in list(dict.fromkeys(_flat_blocks(blocks))):
        wrapped = apply_activation_checkpointing(block, train.activation_checkpointing)
        if wrapped is not block:
            _replace_module(model, block, wrapped)
        if train.compile and any(True for _ in block.children()):  # torch refuses one that is a layer of its own
            wrapped.compile(fullgraph=fullgraph)
        yield block, wrapped


def _flat_blocks(blocks: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Lists of blocks within lists have no forward of their own to gather for."""
    for block in blocks:
        if isinstance(block, nn.ModuleList):
            yield from _flat_blocks(block)
        elif not isinstance(block, OnOtherStage):
            yield block


def _replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace `old` by `new`, in whichever container of the model holds it."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # named_children would give a shared block only once
            if child is old and parent is not new:
                setattr(parent, name, new)


def _linear_layers(block: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules within a block that hold a matrix of their own. What such a module has within goes with it:
    nn.MultiheadAttention uses the weights of its projection without calling it. The block gathers the rest: norms."""
    for child in block.children():
        if any(p.ndim >= 2 for p in child.parameters(recurse=False)):
            yield child
        else:
            yield from _linear_layers(child)


def _untied_embed_and_head(model: nn.Module) -> dict[str, nn.Module]:
    """Embedding and head, unless they share weights: then the root gathers them together."""
    there = {name: end for name, end in model.named_children() if not isinstance(end, OnOtherStage)}
    ends = {name: end for name, end in there.items() if name in ("embed", "head")}
    owned = [{id(p) for p in end.parameters()} for end in ends.values()]
    shared = set.intersection(*owned) if len(owned) == 2 else set()
    return {} if shared else ends
