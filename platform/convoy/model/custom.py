"""A user's own module: found by name, built, checked, and given the loop's contract."""

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import checkpoint

from convoy.config.errors import ConfigError
from convoy.config.model import CustomModelConfig
from convoy.model.loss import IGNORE


class CustomModel(nn.Module):
    """A user's module from token ids (b, s) to logits (b, s, v), with the forward contract of `Transformer`."""

    def __init__(self, config: CustomModelConfig, module: nn.Module, loss_chunk_tokens: int = 0) -> None:
        super().__init__()
        self.config = config
        self.loss_chunk_tokens = loss_chunk_tokens
        self.module = module

    @property
    def blocks(self) -> list[nn.Module]:
        """Elements of each nn.ModuleList of the user's module that is not itself inside another."""
        return list(_blocks_in(self.module))

    def forward(
        self, tokens_bs: Tensor, targets_bs: Tensor | None = None, documents_bs: Tensor | None = None
    ) -> Tensor:
        """As `Transformer.forward`. Raises ConfigError with documents, or if the module returns no tensor (b, s, v)."""
        if documents_bs is not None:
            raise ConfigError(f"model.build = {self.config.build}: a custom model cannot respect document boundaries")
        logits_bsv = self.module(tokens_bs)
        expected = (*tokens_bs.shape, self.config.vocab_size)
        if not isinstance(logits_bsv, Tensor):
            raise ConfigError(
                f"model.build = {self.config.build}: the module's forward returned a {type(logits_bsv).__name__}: "
                f"must return the logits alone, a tensor of shape {expected}"
            )
        if logits_bsv.shape != expected:
            shape = tuple(logits_bsv.shape)
            raise ConfigError(f"model.build = {self.config.build}: logits of shape {shape}: must be {expected}")
        if targets_bs is None:
            return logits_bsv
        return _cross_entropy_sum(logits_bsv.flatten(0, 1), targets_bs.flatten(), self.loss_chunk_tokens)


def _blocks_in(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _blocks_in(child)


def build_module(config: CustomModelConfig, seed: int) -> nn.Module:
    """What the user's function returns, made under this seed. Raises ConfigError for what cannot be trained."""
    build = _import_builder(config)
    try:
        inspect.signature(build).bind(**config.args)
    except TypeError as error:
        raise ConfigError(f"model.args = {config.args}: {config.build} does not take them: {error}") from None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = build(**config.args)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model.build = {config.build}: returned {type(module).__name__}: must be a torch.nn.Module")
    _check_trainable(config, module)
    return module


def _check_trainable(config: CustomModelConfig, module: nn.Module) -> None:
    """Raises ConfigError for a module that FSDP2 or the optimizer would refuse later, in words of their own."""
    built = f"model.build = {config.build}: returned a module"
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise ConfigError(
                f"{built} whose {name} has no shape yet, as in nn.LazyLinear: every parameter and buffer must be "
                "initialised; run a forward pass in the function, or use a module that is not lazy"
            )
        if tensor.is_meta:
            raise ConfigError(f"{built} whose {name} is on the meta device: every tensor must have its initial values")
    first_of: dict[torch.dtype, str] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            first_of.setdefault(parameter.dtype, name)
    if not first_of:
        raise ConfigError(f"{built} without a trainable parameter: at least one must have requires_grad=True")
    if len(first_of) > 1:
        found = ", ".join(f"{name} in {str(dtype).removeprefix('torch.')}" for dtype, name in first_of.items())
        raise ConfigError(f"{built} with parameters of several types ({found}): all trainable ones must be of one type")


def _import_builder(config: CustomModelConfig) -> Callable[..., Any]:
    module_name, _, function_name = config.build.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"model.build = {config.build}: no module named {error.name} on the Python path") from None
    build = getattr(module, function_name, None)
    if not callable(build):
        raise ConfigError(f"model.build = {config.build}: no function {function_name} in {module.__file__}")
    return build


def _cross_entropy_sum(logits_tv: Tensor, targets_t: Tensor, chunk_tokens: int) -> Tensor:
    """Summed loss in fp32; each chunk's fp32 copy is freed and made again in backward."""
    chunk = chunk_tokens or max(1, len(targets_t))
    loss = logits_tv.new_zeros((), dtype=torch.float32)
    for logits_cv, targets_c in zip(logits_tv.split(chunk), targets_t.split(chunk), strict=True):
        loss = loss + checkpoint(_fp32_cross_entropy, logits_cv, targets_c, use_reentrant=False)
    return loss


def _fp32_cross_entropy(logits_cv: Tensor, targets_c: Tensor) -> Tensor:
    return F.cross_entropy(logits_cv.float(), targets_c, ignore_index=IGNORE, reduction="sum")
