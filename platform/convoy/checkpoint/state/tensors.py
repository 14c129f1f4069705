"""The tensors of a checkpoint: weights and optimizer state under names that do not depend on sharding."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

from convoy.checkpoint.state.layout import Rows, local_tensor, note_row_order


def tensors_of(model: nn.Module, optimizer: Optimizer, rows: Mapping[str, Rows] | None = None) -> dict[str, Any]:
    """`{"model": ..., "optimizer": ...}`; also right for an optimizer that has not stepped yet.

    rows: the order of each weight's rows where they do not lie in it. Of the optimizer its state alone: learning rate,
    decay and the like are the configuration's, also on resume.
    """
    model_state, optimizer_state = get_state_dict(model, optimizer)
    tensors = {"model": model_state, "optimizer": {"state": optimizer_state["state"]}}
    note_row_order(tensors, rows or {})
    return tensors


class CachedTensors:
    """`tensors_of` a model and an optimizer, save after save.

    torch takes 15 ms to name 300 weights; to see that the names still stand for the same memory takes one.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, rows: Mapping[str, Rows] | None = None) -> None:
        self._model = model
        self._rows = rows
        self._optimizer = optimizer
        self._cached: dict[str, Any] | None = None
        self._memory: tuple[list[int], list[Any]] = ([], [])

    def __call__(self) -> dict[str, Any]:
        """The result of `tensors_of` now: the same dict as before where nothing was replaced. Leave it unchanged."""
        if self._cached is not None and _is_same_memory(self._memory, self._memory_identity()):
            return self._cached
        tensors = tensors_of(self._model, self._optimizer, self._rows)
        self._memory = self._memory_identity()  # torch has given a fresh optimizer its state by now
        constant = all(isinstance(value, Tensor) for value in (*tensors["model"].values(), *self._memory[1]))
        self._cached = tensors if constant else None  # a number is another one after each step
        return tensors

    @torch.no_grad()
    def _memory_identity(self) -> tuple[list[int], list[Any]]:
        """What the names stand for, as far as anything may be put in its place: where the weights are in memory, and
        the buffers and moments themselves."""
        trained = (p for group in self._optimizer.param_groups for p in group["params"])
        weights = [local_tensor(p).data_ptr() for p in (*self._model.parameters(), *trained)]
        moments = (value for state in self._optimizer.state.values() for value in state.values())
        return weights, [*self._model.buffers(), *moments]


def put_tensors(model: nn.Module, optimizer: Optimizer, tensors: dict[str, Any]) -> None:
    """Put back what `tensors_of` gave and a load has filled."""
    _, own = get_state_dict(model, optimizer)
    state = {"state": dict(tensors["optimizer"]["state"]), "param_groups": own["param_groups"]}
    # Copies of the dicts: torch renames their keys for a model that is wrapped, as by DistributedDataParallel.
    set_state_dict(model, optimizer, model_state_dict=dict(tensors["model"]), optim_state_dict=state)


def _is_same_memory(one: tuple[list[int], list[Any]], other: tuple[list[int], list[Any]]) -> bool:
    held, now = one[1], other[1]
    return one[0] == other[0] and len(held) == len(now) and all(a is b for a, b in zip(held, now, strict=True))
