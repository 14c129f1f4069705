"""Batch normalisation in fp32 in a model that otherwise computes in bf16, as torch's FSDP1 has it too."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def run_batch_norm_in_fp32(model: nn.Module) -> None:
    """Have each batch normalisation use its weight and bias in fp32, as its statistics are: torch does not take
    statistics of another type than weights. Inputs and outputs remain as they are."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.forward = _fp32_forward(module)  # type: ignore[method-assign, assignment]


def _fp32_forward(norm: _BatchNorm) -> Callable[[Tensor], Tensor]:
    def forward(inputs: Tensor) -> Tensor:
        own = dict(norm._parameters)
        norm._parameters.update({name: None if p is None else p.float() for name, p in own.items()})  # type: ignore
        try:
            return type(norm).forward(norm, inputs)
        finally:
            norm._parameters.update(own)

    return forward
