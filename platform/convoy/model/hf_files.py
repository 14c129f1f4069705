"""The tensors of a Hugging Face folder, known from the headers of its safetensors files. No torch."""

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from convoy.config.errors import yaml_value
from convoy.config.model import TransformerConfig
from convoy.model.hf_config import read_json_object, refusal
from convoy.model.hf_names import HEAD, Shape, bare, is_buffer, tensor_shapes
from convoy.storage.names import is_component

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_ADAPTER = "adapter_config.json"
_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Stored:
    """A tensor in one of the files."""

    file: str
    name: str
    """With or without the prefix that files of a bare model leave out."""
    dtype: str
    """As safetensors calls it, such as F32."""
    shape: Shape


def check_tensors(folder: Path, config: TransformerConfig) -> dict[str, Stored]:
    """The tensors of the model by their full names; a tied head may be among them.

    Reads headers only. Raises ConfigError, naming the tensor, unless the folder has each tensor of the model once, in
    its shape and as floating-point numbers, and no other tensor.
    """
    given = _stored(folder)
    if config.n_layers > len(given):  # before so many are listed
        raise refusal(folder, f"config.json gives {config.n_layers} layers, and there are {len(given)} tensors in all")
    shapes = tensor_shapes(config)
    known = {HEAD: (config.vocab_size, config.d_model), **shapes}
    names = {bare(config, name): name for name in known}
    found: dict[str, Stored] = {}
    unused = []
    for stored in given:
        name = names.get(bare(config, stored.name))
        if name is not None:
            if name in found:
                raise refusal(folder, f"tensor {name} is given twice, as {found[name].name} and as {stored.name}")
            _check_tensor(folder, stored, known[name])
            found[name] = stored
        elif not is_buffer(config, stored.name):
            unused.append(stored)
    missing = [name for name in shapes if name not in found]
    if missing:
        raise refusal(folder, f"no tensor {missing[0]} in its safetensors files{_more(missing)}")
    if unused:
        place = f"{yaml_value(unused[0].name)} in {unused[0].file}"
        raise refusal(folder, f"tensor {place} is not part of the model of config.json{_more(unused)}")
    return found


def _stored(folder: Path) -> list[Stored]:
    """Every tensor of the model's files, which the index must describe as they are."""
    if (folder / _ADAPTER).exists():
        raise refusal(folder, f"it holds {_ADAPTER}: merge the adapter into the weights first, and remove the file")
    if not (folder / INDEX).exists():
        return _header(folder, SINGLE)
    if (folder / SINGLE).exists():
        raise refusal(folder, f"it holds both {SINGLE} and {INDEX}: remove the one that is not of this model")
    index = read_json_object(folder, INDEX).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(file, str) and is_component(file) for file in index.values()):
        raise refusal(folder, f"weight_map in {INDEX}: must give the file of each tensor, which is in the same folder")
    tensors = [stored for file in sorted(set(index.values())) for stored in _header(folder, file)]
    for stored in tensors:
        if index.get(stored.name) != stored.file:
            raise refusal(folder, f"tensor {yaml_value(stored.name)} is in {stored.file}, against {INDEX}")
    missing = sorted(index.keys() - {stored.name for stored in tensors})
    if missing:
        raise refusal(folder, f"no tensor {yaml_value(missing[0])} in {yaml_value(index[missing[0]])}{_more(missing)}")
    return tensors


def _header(folder: Path, file: str) -> list[Stored]:
    try:
        if not (folder / file).is_file():  # to open a pipe could take for ever
            raise FileNotFoundError("there is no such file")
        with safe_open(folder / file, framework="np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            return [Stored(file, name, s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()]
    except (OSError, ValueError, SafetensorError) as error:  # ValueError: a file name that no file can have
        raise refusal(folder, f"cannot read {yaml_value(file)}: {error}") from None


def _check_tensor(folder: Path, stored: Stored, shape: Shape) -> None:
    place = f"tensor {yaml_value(stored.name)} in {stored.file}"
    if stored.dtype not in _FLOATS:
        raise refusal(folder, f"{place} is of type {stored.dtype}: must be one of {', '.join(_FLOATS)}, not quantized")
    if stored.shape != shape:
        raise refusal(folder, f"{place} has shape {stored.shape}: must be {shape}, as config.json tells")


def _more(names: list[str] | list[Stored]) -> str:
    return "" if len(names) == 1 else f" (and {len(names) - 1} more)"
