"""Plain values of a state as JSON, exactly: what JSON does not know is an object whose key `~` names its kind."""

import base64
import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch

from convoy.checkpoint.errors import CheckpointError

TAG = "~"
_INT64 = 2**63
"""Larger integers are text: not every JSON reader has them."""


def encode(value: Any, path: str) -> Any:
    """The value as JSON's own types. Raises CheckpointError, which names `path`, for a type that is not kept.

    path: where the value is in the state; only for the error.
    """
    match value:
        case None | bool():
            return value
        case list() if type(value) is list:
            return [encode(item, f"{path}.{i}") for i, item in enumerate(value)]
        case tuple() if type(value) is tuple:
            return _tagged("tuple", [encode(item, f"{path}.{i}") for i, item in enumerate(value)])
        case dict() if type(value) in (dict, OrderedDict):
            return _encoded_dict(value, path)
        case bytes():
            return _tagged("bytes", base64.b64encode(value).decode())
        case torch.dtype():
            return _tagged("dtype", str(value).removeprefix("torch."))
        case torch.device():
            return _tagged("device", str(value))
        case _:
            return _encoded_scalar(value, path)


def decode(value: Any) -> Any:
    """The value that `encode` encoded. Raises ValueError for a kind that this version does not know."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: decode(item) for key, item in value.items()}
    return _decode_tagged(value[TAG], value["value"])


def dtype_of(name: str) -> torch.dtype:
    """The dtype that torch calls `torch.<name>`. Raises ValueError if this torch has none of that name."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch {torch.__version__} has no dtype {name}")
    return dtype


def _encoded_dict(value: dict, path: str) -> Any:
    plain = type(value) is dict and all(_is_utf8_text(key) for key in value) and TAG not in value
    if plain:
        return {key: encode(item, f"{path}.{key}") for key, item in value.items()}
    pairs = [[encode(key, f"{path}.{key}"), encode(item, f"{path}.{key}")] for key, item in value.items()]
    return _tagged("dict" if type(value) is dict else "ordered_dict", pairs)


def _encoded_scalar(value: Any, path: str) -> Any:
    # Exact types only: of a subclass, such as numpy.float64 or an enum, the restored value would be another kind.
    if type(value) is int:
        return value if -_INT64 <= value < _INT64 else _tagged("int", hex(value))
    if type(value) is float:
        return value if math.isfinite(value) else _tagged("float", str(value))
    if type(value) is str:
        return value if _is_utf8_text(value) else _tagged("str", value.encode("utf-8", "surrogatepass").hex())
    if type(value) is complex:
        return _tagged("complex", [encode(value.real, path), encode(value.imag, path)])
    raise CheckpointError(
        f"{path}: {type(value).__module__}.{type(value).__qualname__} cannot be saved in a checkpoint; make it a "
        "tensor, a number, text, bytes, or a list, tuple or dict of these"
    )


def _is_utf8_text(value: Any) -> bool:
    """Text that UTF-8, and so JSON, can hold: not half a surrogate pair."""
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {TAG: kind, "value": value}


def _decode_tagged(kind: str, value: Any) -> Any:
    match kind:
        case "tuple":
            return tuple(decode(item) for item in value)
        case "dict":
            return dict(_decoded_pairs(value))
        case "ordered_dict":
            return OrderedDict(_decoded_pairs(value))
        case "bytes":
            return base64.b64decode(value)
        case "int":
            return int(value, 16)
        case "float":
            return float(value)
        case "str":
            return bytes.fromhex(value).decode("utf-8", "surrogatepass")
        case "complex":
            return complex(decode(value[0]), decode(value[1]))
        case "dtype":
            return dtype_of(value)
        case "device":
            return torch.device(value)
        case _:
            raise ValueError(f"a plain value of kind {kind!r}, which this version of Convoy does not know")


def _decoded_pairs(value: Iterable[list[Any]]) -> Iterable[tuple[Any, Any]]:
    return ((decode(key), decode(item)) for key, item in value)
