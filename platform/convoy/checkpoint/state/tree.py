"""A state as the user has it, nested, and as a checkpoint names it: tensors and plain values by their path."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import setitem
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful

from convoy.checkpoint.errors import CheckpointError

Put = Callable[[Any], None]
"""Puts another value where one was found."""


@dataclass
class Tree:
    """A flattened state by path: keys and list indices joined with `.`."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    """Each is the largest piece that holds no tensor: a number, or a whole dict of numbers."""
    puts: dict[str, Put] = field(default_factory=dict)
    """Puts each value back."""
    objects: list[tuple[str, Stateful, Any]] = field(default_factory=list)
    """Path, object, and what its `state_dict()` gave; inner ones first."""

    def _add(self, path: str, value: Any, put: Put) -> None:
        if path in self.tensors or path in self.values:
            raise CheckpointError(f"{path}: two entries of the state have this path")
        if isinstance(value, torch.Tensor):
            _check_supported(path, value)
            self.tensors[path] = value  # detaching a DTensor would take 8 us
        else:
            self.values[path] = value
            self.puts[path] = put


def flatten(state: Mapping[str, Any]) -> Tree:
    """Raises CheckpointError, which names the path, for a key or a tensor that no checkpoint can keep."""
    tree = Tree()
    for key, value in _checked_entries(state, ""):
        _add_entries(tree, _join_path("", key), value, partial(setitem, state, key))
    return tree


def put_values(tree: Tree, values: Mapping[str, Any]) -> None:
    """Put the values where `flatten` found them: into the dict or list that is there, else in its place."""
    for path, value in values.items():
        own = tree.values[path]
        if isinstance(own, dict) and isinstance(value, dict):
            own.clear()
            own.update(value)
        elif isinstance(own, list) and isinstance(value, list):
            own[:] = value
        else:
            tree.puts[path](value)


def load_state_dicts(tree: Tree) -> None:
    """Load the state of each object, which is filled by now, back into it."""
    for _, owner, state in tree.objects:
        owner.load_state_dict(state)


def _add_entries(tree: Tree, path: str, value: Any, put: Put) -> None:
    if isinstance(value, torch.Tensor) or _is_plain(value):
        tree._add(path, value, put)
    elif isinstance(value, Mapping):
        for key, item in _checked_entries(value, path):
            _add_entries(tree, _join_path(path, key), item, partial(setitem, value, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _add_entries(tree, f"{path}.{i}", item, partial(setitem, value, i))
    elif isinstance(value, tuple):
        items = list(value)
        for i, item in enumerate(value):
            _add_entries(tree, f"{path}.{i}", item, partial(_put_in_tuple, items, i, type(value), put))
    else:
        inner = value.state_dict()
        if not isinstance(inner, dict):
            raise CheckpointError(f"{path}: its state_dict() gave {type(inner).__name__}, not a dict")
        _add_entries(tree, path, inner, put)  # a dict is filled in place: `put` is not needed
        tree.objects.append((path, value, inner))


def _is_plain(value: Any) -> bool:
    """No tensor is in it, and no object with a state of its own."""
    if isinstance(value, torch.Tensor):
        return False
    if isinstance(value, Mapping):
        return all(_is_plain(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    # Last: the check of a protocol looks attributes up, which takes microseconds.
    return isinstance(value, (str, int, float, bytes, type(None))) or not isinstance(value, Stateful)


def _checked_entries(mapping: Mapping[Any, Any], path: str) -> list[tuple[Any, Any]]:
    for key in mapping:
        if not isinstance(key, (str, int)):
            raise CheckpointError(f"{path or 'state'}: key {key!r} is neither text nor an integer")
    return list(mapping.items())


def _join_path(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _put_in_tuple(items: list[Any], index: int, kind: type, put: Put, value: Any) -> None:
    items[index] = value
    put(kind(*items) if hasattr(kind, "_fields") else kind(items))


def _check_supported(path: str, tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise CheckpointError(f"{path}: a {tensor.layout} tensor on {tensor.device} cannot be saved in a checkpoint")
