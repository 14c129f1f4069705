"""The tensors of a checkpoint: weights and optimizer state under names that do not depend on sharding."""

from typing import Any

from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer


def tensors_of(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """`{"model": ..., "optimizer": ...}`; also right for an optimizer that has not stepped yet.

    Of the optimizer its state alone: learning rate, decay and the like are the configuration's, also on resume.
    """
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": {"state": optimizer_state["state"]}}


def put_tensors(model: nn.Module, optimizer: Optimizer, tensors: dict[str, Any]) -> None:
    """Put back what `tensors_of` gave and a load has filled."""
    _, own = get_state_dict(model, optimizer)
    state = {"state": dict(tensors["optimizer"]["state"]), "param_groups": own["param_groups"]}
    # Copies of the dicts: torch renames their keys for a model that is wrapped, as by DistributedDataParallel.
    set_state_dict(model, optimizer, model_state_dict=dict(tensors["model"]), optim_state_dict=state)


def parameter_shapes(tensors: dict[str, Any]) -> dict[str, list[int]]:
    """Global shape of every tensor of the model, by name."""
    return {name: list(value.shape) for name, value in sorted(tensors["model"].items()) if hasattr(value, "shape")}
