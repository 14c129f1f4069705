"""The tensors of a Hugging Face folder: those that a model must have, and those in its files. No torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from convoy.config.errors import yaml_value
from convoy.config.model import TransformerConfig
from convoy.model.block import Matrix, Norm
from convoy.model.families import block_of
from convoy.model.hf_config import hf_format, init_error, read_json_object
from convoy.model.hf_format import HfFormat
from convoy.storage.base import is_component

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_ADAPTER = "adapter_config.json"
_FLOATS = ("F64", "F32", "F16", "BF16")


HEAD = "lm_head.weight"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Correspondence:
    """One of our parameters and the tensors of a Hugging Face model that hold it."""

    ours: str
    theirs: Mapping[str, Shape]
    """Names and shapes. The rows of several tensors stand on top of each other in ours."""
    transposed: bool = False


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in one of the files."""

    file: str
    name: str
    """With or without the prefix that files of a bare model leave out."""
    dtype: str
    """As safetensors calls it, such as F32."""
    shape: Shape


def correspondences(config: TransformerConfig) -> list[Correspondence]:
    """Every parameter of the model, in its order. Raises ConfigError for a form that no Hugging Face model has."""
    chosen, table = hf_format(config), (config.vocab_size, config.d_model)
    final = Norm("head.norm", config.d_model, config.vectors_per_norm)

    def embedding(name: str, shape: Shape) -> Correspondence:
        return Correspondence(f"{name}.weight", {f"{chosen.prefix}{chosen.ends[name]}.weight": shape})

    pairs = [embedding("embed.token", table)]
    if config.positions == "learned":
        pairs.append(embedding("embed.position", (config.max_sequence_length, config.d_model)))
    for layer in range(config.n_layers):
        pairs.extend(_block_pairs(config, chosen, layer))
    pairs.extend(_norm_pairs(final, "head.norm", f"{chosen.prefix}{chosen.ends['head.norm']}"))
    if not config.tied_embeddings:
        pairs.append(Correspondence("head.weight", {HEAD: table}))
    return pairs


def _block_pairs(config: TransformerConfig, chosen: HfFormat, layer: int) -> Iterator[Correspondence]:
    block = block_of(config)
    modules: dict[str, Norm | Matrix] = {norm.name: norm for norm in block.norms}
    modules |= {matrix.name: matrix for matrix in block.matrices}
    for name, theirs in chosen.block.items():
        module, ours = modules[name], f"blocks.{layer}.{name}"
        paths = [f"{chosen.prefix}{chosen.layers}.{layer}.{path}" for path in theirs]
        if isinstance(module, Norm):
            yield from _norm_pairs(module, ours, paths[0])
        else:
            yield from _matrix_pairs(module, ours, paths, transposed=chosen.transposed)


def _norm_pairs(norm: Norm, ours: str, theirs: str) -> Iterator[Correspondence]:
    for kind in ("weight", "bias")[: norm.vectors]:
        yield Correspondence(f"{ours}.{kind}", {f"{theirs}.{kind}": (norm.width,)})


def _matrix_pairs(matrix: Matrix, ours: str, theirs: list[str], *, transposed: bool) -> Iterator[Correspondence]:
    rows = dict(zip(theirs, matrix.parts if len(theirs) > 1 else (matrix.rows,), strict=True))
    shapes = {name: (matrix.columns, n) if transposed else (n, matrix.columns) for name, n in rows.items()}
    yield Correspondence(f"{ours}.weight", {f"{name}.weight": shape for name, shape in shapes.items()}, transposed)
    if matrix.bias:
        yield Correspondence(f"{ours}.bias", {f"{name}.bias": (n,) for name, n in rows.items()})


def hf_tensor_shapes(config: TransformerConfig) -> dict[str, Shape]:
    """Every tensor that a folder of this model must have."""
    return {name: shape for pair in correspondences(config) for name, shape in pair.theirs.items()}


def check_tensors(folder: Path, config: TransformerConfig) -> dict[str, StoredTensor]:
    """The tensors of the model by their full names; a tied head may be among them.

    Reads headers only. Raises ConfigError, naming the tensor, unless the folder has each tensor of the model once, in
    its shape and as floating-point numbers, and no other tensor.
    """
    stored, chosen = _read_stored_tensors(folder), hf_format(config)
    if config.n_layers > len(stored):  # before so many are listed
        raise init_error(
            folder, f"config.json gives {config.n_layers} layers, and there are {len(stored)} tensors in all"
        )
    needed = hf_tensor_shapes(config)
    shapes = {HEAD: (config.vocab_size, config.d_model), **needed}
    names = {name.removeprefix(chosen.prefix): name for name in shapes}
    tensors: dict[str, StoredTensor] = {}
    unused = []
    for tensor in stored:
        bare = tensor.name.removeprefix(chosen.prefix)
        name = names.get(bare)
        if name is not None:
            if name in tensors:
                raise init_error(folder, f"tensor {name} appears twice, as {tensors[name].name} and as {tensor.name}")
            _check_tensor(folder, tensor, shapes[name])
            tensors[name] = tensor
        elif chosen.buffers.fullmatch(bare) is None:
            unused.append(tensor)
    missing = [name for name in needed if name not in tensors]
    if missing:
        raise init_error(folder, f"no tensor {missing[0]} in its safetensors files{_and_n_more(missing)}")
    if unused:
        place = f"{yaml_value(unused[0].name)} in {unused[0].file}"
        raise init_error(folder, f"tensor {place} is not part of the model of config.json{_and_n_more(unused)}")
    return tensors


def _read_stored_tensors(folder: Path) -> list[StoredTensor]:
    """Every tensor of the model's files, which the index must describe as they are."""
    if (folder / _ADAPTER).exists():
        raise init_error(folder, f"it holds {_ADAPTER}: merge the adapter into the weights first, and remove the file")
    if not (folder / INDEX).exists():
        return _read_header(folder, SINGLE)
    if (folder / SINGLE).exists():
        raise init_error(folder, f"it holds both {SINGLE} and {INDEX}: remove the one that is not of this model")
    index = read_json_object(folder, INDEX).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(file, str) and is_component(file) for file in index.values()):
        raise init_error(
            folder, f"weight_map in {INDEX}: must give the file of each tensor, which is in the same folder"
        )
    tensors = [stored for file in sorted(set(index.values())) for stored in _read_header(folder, file)]
    for stored in tensors:
        if index.get(stored.name) != stored.file:
            raise init_error(folder, f"tensor {yaml_value(stored.name)} is in {stored.file}, against {INDEX}")
    missing = sorted(index.keys() - {stored.name for stored in tensors})
    if missing:
        raise init_error(
            folder, f"no tensor {yaml_value(missing[0])} in {yaml_value(index[missing[0]])}{_and_n_more(missing)}"
        )
    return tensors


def _read_header(folder: Path, file: str) -> list[StoredTensor]:
    try:
        if not (folder / file).is_file():  # to open a pipe could take for ever
            raise FileNotFoundError("there is no such file")
        with safe_open(folder / file, framework="np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            return [StoredTensor(file, name, s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()]
    except (OSError, ValueError, SafetensorError) as error:  # ValueError: a file name that no file can have
        raise init_error(folder, f"cannot read {yaml_value(file)}: {error}") from None


def _check_tensor(folder: Path, stored: StoredTensor, shape: Shape) -> None:
    place = f"tensor {yaml_value(stored.name)} in {stored.file}"
    if stored.dtype not in _FLOATS:
        raise init_error(
            folder, f"{place} is of type {stored.dtype}: must be one of {', '.join(_FLOATS)}, not quantized"
        )
    if stored.shape != shape:
        raise init_error(folder, f"{place} has shape {stored.shape}: must be {shape}, as config.json says")


def _and_n_more(names: list[str] | list[StoredTensor]) -> str:
    return "" if len(names) == 1 else f" (and {len(names) - 1} more)"
