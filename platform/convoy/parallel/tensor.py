"""Tensor parallelism: neighbours share each matrix product of a block, Megatron's way (Shoeybi et al. 2019).

Of attention and MLP the first product is cut by columns and the second by rows, so that each needs one all-reduce in
forward and one in backward. Norms, embeddings and the head's weight are on every rank of the group; what the head does
is shared by tokens, each rank taking the logits and the loss of a part of the sequence.
"""

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from convoy.model.block import Block
from convoy.model.families import block_of
from convoy.model.transformer import Transformer
from convoy.parallel.pipeline import OnOtherStage


def apply_tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    """Cut the model over the ranks of a one-dimensional mesh. Before recomputation, compilation and sharding.

    model: a transformer on the meta device, whose sizes so many ranks divide, as `RunConfig` makes sure of.
    """
    assert isinstance(model, Transformer)
    model.tensor_ranks = mesh.size()
    shape = block_of(model.config)
    for block in model.blocks:
        if not isinstance(block, OnOtherStage):
            parallelize_module(block, mesh, _block_plan(shape))
    ends: dict[str, ParallelStyle] = {
        "embed.token": Replicated(copied=True),
        "embed.position": Replicated(),
        "head": ShardedByTokens(),
    }
    there = {name for name, module in model.named_modules() if not isinstance(module, OnOtherStage)}
    parallelize_module(model, mesh, {name: style for name, style in ends.items() if name in there})
    model._tie_head()


class Replicated(ParallelStyle):
    """The module computes the same on all ranks, from inputs that are the same."""

    def __init__(self, *, copied: bool = False) -> None:
        """copied: what leaves is no view, of which FSDP warns where it is the output of a module that it wraps."""
        self._copied = copied

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, _replicate_parameters, _replicate_inputs, self._output_to_local)

    def _output_to_local(self, _: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
        return output.to_local().clone() if self._copied else output.to_local()


class ShardedByTokens(ParallelStyle):
    """The head, of which each rank computes the loss of its own part of the sequence; without targets, all logits."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, _replicate_parameters, _split_inputs_by_tokens)


def _block_plan(block: Block) -> dict[str, ParallelStyle]:
    """How each module of a block is cut, by its name."""
    plan: dict[str, ParallelStyle] = {norm.name: Replicated() for norm in block.norms}
    for matrix in block.matrices:
        plan[matrix.name] = ColwiseParallel() if matrix.split == "rows" else RowwiseParallel()
    return plan


def _replicate_parameters(_: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        if not isinstance(parameter, DTensor):
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter, mesh, [Replicate()])))


def _replicate_inputs(_: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
    return tuple(DTensor.from_local(x, mesh, [Replicate()], run_check=False) for x in inputs)


def _split_inputs_by_tokens(_: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
    hidden_bsd, targets_bs, chunk_tokens = inputs
    hidden = DTensor.from_local(hidden_bsd, mesh, [Replicate()], run_check=False)
    if targets_bs is None:
        return hidden, None, chunk_tokens
    targets = DTensor.from_local(targets_bs, mesh, [Replicate()], run_check=False)
    own = [Shard(1)]
    return hidden.redistribute(placements=own), targets.redistribute(placements=own).to_local(), chunk_tokens
