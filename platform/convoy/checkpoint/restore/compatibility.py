"""Whether a commit fits a state: the same names, shapes and types, no more, no fewer.

A load takes what it finds by name: a model with fewer layers would silently drop the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from convoy.checkpoint.format import Commit, PartRecord, TensorInfo
from convoy.checkpoint.state.folder import FILES, Folder
from convoy.checkpoint.state.tree import Tree, flatten
from convoy.checkpoint.state.values import decode
from convoy.config.errors import ConfigError


def match_state(
    state: Mapping[str, Any],
    commit: Commit,
    parts: Sequence[PartRecord],
    other_ranks: Mapping[str, TensorInfo] | None = None,
) -> tuple[Tree, dict[str, Any]]:
    """The state, and the commit's plain values that go into it. Raises ConfigError if they do not fit.

    other_ranks: tensors of the state that other ranks have, perhaps alone. An optimizer that has not stepped yet, given
    as the object, gets the state that is about to be filled; so does a folder.
    """
    tree = flatten(state)
    if _init_optimizer_states(tree, commit) | _prepare_folders(tree, commit):
        tree = flatten(state)
    try:
        values = {value.name: decode(value.value) for part in parts for value in part.values}
    except ValueError as error:
        raise ConfigError(f"checkpoint of step {commit.step}: {error}") from None
    own = {name: _description(info) for name, info in {**(other_ranks or {}), **tensor_infos(tree.tensors)}.items()}
    saved = {name: _description(info) for name, info in commit.tensors.items()}
    _refuse_differences(
        commit.step, own | dict.fromkeys(tree.values, "a plain value"), saved | dict.fromkeys(values, "a plain value")
    )
    return tree, values


def tensor_infos(tensors: Mapping[str, torch.Tensor]) -> dict[str, TensorInfo]:
    """Type and global shape of each."""
    return {
        name: TensorInfo(dtype=str(tensor.dtype).removeprefix("torch."), shape=list(tensor.shape))
        for name, tensor in tensors.items()
    }


def _refuse_differences(step: int, own: Mapping[str, str], saved: Mapping[str, str]) -> None:
    names = [name for name in _union_in_order(own, saved) if own.get(name) != saved.get(name)]
    if not names:
        return
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    raise ConfigError(
        f"state: {names[0]} is {own.get(names[0], 'absent')} here, and {saved.get(names[0], 'absent')} in the "
        f"checkpoint of step {step}{more}; restore into the state that was saved, or start another checkpoint"
    )


def _union_in_order(*names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for some in names for name in some))


def _init_optimizer_states(tree: Tree, commit: Commit) -> bool:
    """Give each optimizer without state, where the commit has some, the state of one step that changes nothing."""
    begun = False
    for path, owner, _ in tree.objects:
        if not isinstance(owner, torch.optim.Optimizer) or owner.state:
            continue
        if any(name.startswith(f"{path}.state.") for name in commit.tensors):
            _init_optimizer_state(owner)
            begun = True
    return begun


def _prepare_folders(tree: Tree, commit: Commit) -> bool:
    """Give each folder the files that the commit has of it. Raises CheckpointError."""
    folders = [(f"{path}.{FILES}.", owner) for path, owner, _ in tree.objects if isinstance(owner, Folder)]
    for prefix, folder in folders:
        files = {name: info for name, info in commit.tensors.items() if name.startswith(prefix)}
        folder.prepare({name.removeprefix(prefix): info.shape[0] for name, info in files.items()})
    return bool(folders)


def _init_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Step with gradients of zero and a learning rate of zero."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    grads = [(p, p.grad) for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    for parameter, _ in grads:
        parameter.grad = torch.zeros_like(parameter)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if rate is not None:
            group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if rate is not None:
            group["lr"] = rate
    for parameter, grad in grads:
        parameter.grad = grad


def _description(info: TensorInfo) -> str:
    return f"{tuple(info.shape)} {info.dtype}"
