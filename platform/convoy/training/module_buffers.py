"""The buffers of a user's own module, such as BatchNorm's statistics, which each rank's forward changes by itself.

The rule is that of DistributedDataParallel: every rank takes rank 0's values. It does so once per step, after the last
backward, so that all ranks hold the same whenever the state is saved or evaluated. No rank has less padding, samples of
weight zero, than rank 0.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from convoy.config.errors import ConfigError
from convoy.model.custom import CustomModel


class ModuleBuffers:
    """Those that a checkpoint keeps; what a module registers with `persistent=False` is left alone."""

    def __init__(self, model: CustomModel, training_group: dist.ProcessGroup | None = None) -> None:
        """All ranks call it, once the model has its state. training_group: the ranks that train together; None: all."""
        self._model = model
        self._training_group = training_group
        self._agreed: dict[str, Tensor] = {}
        """As bytes, after the last `sync_from_rank_0`."""
        self._names = frozenset(_persistent_buffers(model))
        self.sync_from_rank_0()

    @torch.no_grad()
    def sync_from_rank_0(self) -> None:
        """Give all ranks rank 0's value of each buffer that any of them has changed. All ranks call it."""
        buffers = self._checked_buffers()
        if not buffers:
            return
        own = {name: _as_bytes(buffer) for name, buffer in buffers.items()}
        changed = torch.stack([_differs(self._agreed.get(name), data) for name, data in own.items()])
        dist.all_reduce(changed, dist.ReduceOp.MAX, group=self._training_group)
        names = [name for name, some in zip(own, changed.tolist(), strict=True) if some]
        if not names:
            return
        message = torch.cat([own[name] for name in names])
        dist.broadcast(message, group=self._training_group, group_src=0)
        for name, data in zip(names, message.split([len(own[name]) for name in names]), strict=True):
            self._agreed[name] = data.clone()  # a slice of the message might not be aligned for the buffer's type
            _write_buffer(buffers[name], self._agreed[name])

    @torch.no_grad()
    def put_back(self) -> None:
        """Undo what was changed since the last `sync_from_rank_0`: a skipped step and an evaluation leave no trace."""
        for name, buffer in self._checked_buffers().items():
            if name in self._agreed:
                _write_buffer(buffer, self._agreed[name])

    def _checked_buffers(self) -> dict[str, Tensor]:
        """Collected each time, since a module may replace a buffer's tensor. Raises ConfigError for a buffer of another
        size, or one that was not there before."""
        buffers = _persistent_buffers(self._model)
        for name, buffer in buffers.items():
            if name not in self._names:
                raise ConfigError(
                    f"model.build = {self._model.config.build}: buffer {name} was None, and is a tensor after a "
                    "forward: must be a tensor from the start, or be registered with persistent=False"
                )
            agreed = self._agreed.get(name)
            if agreed is not None and len(agreed) != buffer.nbytes:
                raise ConfigError(
                    f"model.build = {self._model.config.build}: buffer {name} had {len(agreed)} bytes, and has "
                    f"{buffer.nbytes} after a forward: must keep its size, or be registered with persistent=False"
                )
        return buffers


def _persistent_buffers(model: CustomModel) -> dict[str, Tensor]:
    return {
        f"{prefix}.{name}".removeprefix("module."): buffer
        for prefix, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    }


def _differs(agreed: Tensor | None, data: Tensor) -> Tensor:
    """1 or 0, where the data is."""
    changed = torch.ones((), dtype=torch.bool, device=data.device) if agreed is None else (agreed != data).any()
    return changed.to(torch.uint8)


def _as_bytes(buffer: Tensor) -> Tensor:
    return buffer.detach().contiguous().reshape(-1).view(torch.uint8)


def _write_buffer(buffer: Tensor, data: Tensor) -> None:
    buffer.copy_(data.view(buffer.dtype).view(buffer.shape))
