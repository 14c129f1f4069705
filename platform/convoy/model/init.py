"""Initial weights that depend on the seed and the parameter's name only, on any number of ranks.

Works on plain tensors and on the DTensors of FSDP2 after `to_empty`. Every rank makes each full
parameter in turn and keeps its own part, so there is no communication and one full parameter in memory
at a time. (`reset_parameters` on DTensors gives other values for every world size on CPU:
pytorch issues 138329 and 168058.)
"""

import hashlib
import math
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from convoy.config.errors import ConfigError
from convoy.model.block import RowOrder
from convoy.model.families import block_of
from convoy.model.transformer import Transformer

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
_BLOCK = re.compile(r"^blocks\.\d+\.")


def parameter_names(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Each parameter once, under the name it has without activation checkpointing and compilation."""
    for name, parameter in model.named_parameters():
        yield _unwrapped_name(name), parameter


@torch.no_grad()
def initialise_weights(model: Transformer, seed: int, generator_device: torch.device | None = None) -> None:
    """Fill every parameter: weights normal with init_std, norms 1, biases 0.

    Projections into the residual stream have the deviation init_std / sqrt(2 n_layers).
    Values are equal for every world size and sharding. CPU and GPU generators differ: generator_device says whose,
    wherever the parameters are kept; None: the device that computes with them.
    Source: GPT-2 (Radford et al. 2019), section 2.3.
    """
    rows, matrices = row_orders(model), block_of(model.config).matrices
    residual = tuple(f".{matrix.name}.weight" for matrix in matrices if matrix.split == "columns")
    for name, parameter in parameter_names(model):
        device = generator_device or _compute_device(parameter)
        std = model.config.init_std / (math.sqrt(2 * model.config.n_layers) if name.endswith(residual) else 1.0)
        full = _initial_values(name, parameter, std, seed, device)
        _copy_own_shard(parameter, _in_memory_order(full, rows.get(name, ())))


@torch.no_grad()
def load_full_weights(model: nn.Module, named_tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Fill every parameter from full tensors, which all ranks iterate alike; dtypes are converted.

    Raises ConfigError when a parameter gets no tensor, a tensor has no parameter, or shapes differ.
    """
    missing, rows = dict(parameter_names(model)), row_orders(model)
    for name, tensor in named_tensors:
        parameter = missing.pop(_unwrapped_name(name), None)
        if parameter is None:
            raise ConfigError(f"weights: tensor {name} is not a parameter of the model, or appears twice")
        if parameter.shape != tensor.shape:
            raise ConfigError(f"weights: {name} has shape {tuple(tensor.shape)}: must be {tuple(parameter.shape)}")
        _copy_own_shard(parameter, _in_memory_order(tensor, rows.get(_unwrapped_name(name), ())))
    if missing:
        raise ConfigError(f"weights: no tensor for {', '.join(sorted(missing)[:3])} ({len(missing)} missing)")


def row_orders(model: nn.Module) -> dict[str, RowOrder]:
    """By name, the parameters whose rows lie in another order than theirs, because tensor-parallel ranks share them."""
    if not isinstance(model, Transformer) or model.tensor_ranks == 1:
        return {}
    orders = {m.name: m.row_order(model.tensor_ranks) for m in block_of(model.config).matrices if m.parts}
    matrices = {name: _BLOCK.sub("", name).rpartition(".")[0] for name, _ in parameter_names(model)}
    return {name: orders[matrix] for name, matrix in matrices.items() if matrix in orders}


def _in_memory_order(full: Tensor, rows: RowOrder) -> Tensor:
    return torch.cat([full.narrow(0, first, count) for first, count in rows]) if rows else full


def _unwrapped_name(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _compute_device(parameter: Tensor) -> torch.device:
    """Of a mesh, its devices: shards of parameters may be kept in host memory."""
    return torch.device(parameter.device_mesh.device_type) if isinstance(parameter, DTensor) else parameter.device


def _initial_values(name: str, parameter: Tensor, std: float, seed: int, device: torch.device) -> Tensor:
    full = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
    if name.endswith(".bias"):
        return full.zero_()
    if name.endswith("norm.weight"):
        return full.fill_(1.0)
    return full.normal_(0.0, std, generator=torch.Generator(device).manual_seed(_parameter_seed(seed, name)))


def _parameter_seed(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _copy_own_shard(parameter: Tensor, full: Tensor) -> None:
    if not isinstance(parameter, DTensor):
        parameter.copy_(full)
        return
    local = parameter.to_local()
    full = full.to(device=_compute_device(parameter), dtype=local.dtype)
    part = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
    local.copy_(part.to_local())
