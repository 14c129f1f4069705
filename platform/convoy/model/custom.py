"""A user's own module: found by name, built, checked, and given the loop's contract."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import checkpoint

from convoy.config.errors import ConfigError
from convoy.config.functions import check_arguments, import_function
from convoy.config.model import CustomModelConfig
from convoy.model.loss import IGNORE


class CustomModel(nn.Module):
    """A user's module as the loop calls it."""

    def __init__(self, config: CustomModelConfig, module: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.module = module

    @property
    def blocks(self) -> list[nn.Module]:
        """The repeated layers of the user's module, each of which is sharded by itself: elements of an nn.ModuleList,
        or of an nn.Sequential whose elements are of one class, that is not itself inside another."""
        return list(_blocks_in(self.module))


class CustomTokenModel(CustomModel):
    """A user's module from token ids (b, s) to logits (b, s, v), with the forward contract of `Transformer`."""

    def __init__(self, config: CustomModelConfig, module: nn.Module, loss_chunk_tokens: int = 0) -> None:
        super().__init__(config, module)
        self.loss_chunk_tokens = loss_chunk_tokens

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


class CustomTask(CustomModel):
    """A user's module that takes a batch of the user's dataset and returns its loss."""

    weight: Tensor | None = None
    """Sum of the weights of the losses since `take_weight` was last called."""
    _takes_batches = False
    """Whether a batch fitted the signature of the module's forward."""

    def forward(self, batch: Any, rows: int) -> Tensor:
        """The summed loss, in fp32; its weight is added to `weight`.

        batch: a dict, given to the module as keyword arguments, or a tuple or list, given as positional ones. rows:
        samples in it; 0: it is padding, of no weight. The module returns the summed loss and its weight, or the mean
        loss over the samples, whose weight is their number: a scalar, or as `loss` of a dict or an object. Raises
        ConfigError for anything else.
        """
        if not self._takes_batches:
            self._check_signature(batch)
            self._takes_batches = True
        returned = self.module(**batch) if isinstance(batch, Mapping) else self.module(*batch)
        loss, weight = self._loss_and_weight(returned, rows)
        if rows == 0:
            loss, weight = loss * 0.0, weight * 0.0
        self.weight = weight if self.weight is None else self.weight + weight
        return loss

    def take_weight(self) -> Tensor:
        """The sum of the weights since the last call, a scalar in fp64."""
        weight, self.weight = self.weight, None
        return torch.zeros((), dtype=torch.float64) if weight is None else weight

    def _check_signature(self, batch: Any) -> None:
        """Raises ConfigError if the module's forward does not take the parts of a batch."""
        signature = inspect.signature(self.module.forward)
        try:
            signature.bind(**batch) if isinstance(batch, Mapping) else signature.bind(*batch)
        except TypeError as error:
            has = ", ".join(batch) if isinstance(batch, Mapping) else f"{len(batch)} values"
            taken = ", ".join(signature.parameters)
            raise ConfigError(
                f"model.build = {self.config.build}: the module's forward takes ({taken}), and a batch has {has}: "
                f"{error}"
            ) from None

    def _loss_and_weight(self, returned: Any, rows: int) -> tuple[Tensor, Tensor]:
        if isinstance(returned, tuple) and len(returned) == 2 and all(_is_scalar(each) for each in returned):
            summed, weight = (torch.as_tensor(each) for each in returned)
            return self._checked(summed).float(), weight.detach().to(summed.device, torch.float64)
        loss = returned.get("loss") if isinstance(returned, Mapping) else getattr(returned, "loss", returned)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ConfigError(
                f"model.build = {self.config.build}: the module's forward returned {_described(returned)}: must return "
                "the mean loss of the batch, or its summed loss and the weight of that"
            )
        mean = self._checked(loss.reshape(()))
        return mean.float() * rows, mean.new_full((), rows, dtype=torch.float64)

    def _checked(self, loss: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise ConfigError(
                f"model.build = {self.config.build}: the loss of the module's forward has no gradient: it must be "
                "computed from the parameters, and not detached"
            )
        return loss


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.ndim == 0)


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with the keys {', '.join(map(str, value)) or 'none'}"
    return f"a {type(value).__name__}"


def _blocks_in(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList) or _is_repeated(child):
            yield from child.children()
        else:
            yield from _blocks_in(child)


def _is_repeated(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and len(module) > 1 and len({type(each) for each in module}) == 1


def build_module(config: CustomModelConfig, seed: int, *, values: bool = True) -> nn.Module:
    """What the user's function returns, made under this seed. values: its tensors must have values. Raises ConfigError
    for what cannot be trained."""
    build = import_function("model.build", config.build)
    check_arguments("model.args", config.build, build, config.args)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = build(**config.args)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model.build = {config.build}: returned {type(module).__name__}: must be a torch.nn.Module")
    if values:
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


def _cross_entropy_sum(logits_tv: Tensor, targets_t: Tensor, chunk_tokens: int) -> Tensor:
    """Summed loss in fp32; each chunk's fp32 copy is freed and made again in backward."""
    chunk = chunk_tokens or max(1, len(targets_t))
    loss = logits_tv.new_zeros((), dtype=torch.float32)
    for logits_cv, targets_c in zip(logits_tv.split(chunk), targets_t.split(chunk), strict=True):
        loss = loss + checkpoint(_fp32_cross_entropy, logits_cv, targets_c, use_reentrant=False)
    return loss


def _fp32_cross_entropy(logits_cv: Tensor, targets_c: Tensor) -> Tensor:
    return F.cross_entropy(logits_cv.float(), targets_c, ignore_index=IGNORE, reduction="sum")
