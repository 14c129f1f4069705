"""Kinds of figures in a file of claims, and how their text is read."""

import re
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import model_validator
from pydantic.fields import FieldInfo

from convoy.audit.span import Figure
from convoy.audit.units import Dimension, parse
from convoy.config.base import Frozen
from convoy.config.errors import shown

Figures = tuple[Figure, ...]


class Reads(NamedTuple):
    """How the text of a field is read. default: unit of a number alone."""

    dimension: Dimension
    default: str = ""


Whole = Annotated[Figures, Reads("exact")]
Count = Annotated[Figures, Reads("count")]
Size = Annotated[Figures, Reads("size")]
Hours = Annotated[Figures, Reads("time", "h")]
Seconds = Annotated[Figures, Reads("time", "s")]
Microseconds = Annotated[Figures, Reads("time", "us")]
Gigabytes = Annotated[Figures, Reads("bytes", "GB")]
Bandwidth = Annotated[Figures, Reads("bandwidth", "GB/s")]
Money = Annotated[Figures, Reads("money")]
Price = Annotated[Figures, Reads("price")]
UnitPrice = Annotated[Figures, Reads("unit_price")]
Share = Annotated[Figures, Reads("share")]
Ratio = Annotated[Figures, Reads("ratio")]
Tflops = Annotated[Figures, Reads("flops")]

_ALIASES = {"hours": ("time", "h"), "days": ("time", "d"), "instance_type": ("instance", ""), "name": ("id", "")}
"""Other words for a key, and the unit that such a word tells."""

_SYNONYMS = {
    "s3": "shared", "fsx": "shared", "fsxforlustre": "shared", "lustre": "shared", "efs": "shared", "nfs": "shared",
    "localnvme": "nvme", "localdisk": "nvme", "localdisks": "nvme", "localssd": "nvme", "ssd": "nvme", "disk": "nvme",
    "ram": "memory", "hostmemory": "memory", "cpumemory": "memory", "dram": "memory",
    "modelweights": "weights", "weightsonly": "weights", "modelonly": "weights", "model": "weights",
    "weightsandoptimizer": "training_state", "modelandoptimizer": "training_state", "fullstate": "training_state",
    "weightsoptimizer": "training_state", "fulltrainingstate": "training_state", "trainingstates": "training_state",
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float8": "fp8",
    "fsdp2": "fsdp", "fullysharded": "fsdp", "fullshard": "fsdp", "hybridshard": "hsdp", "dataparallel": "ddp",
    "zerostage1": "zero1", "zerostage2": "zero2", "zerostage3": "zero3", "deepspeedzero1": "zero1",
    "deepspeedzero2": "zero2", "deepspeedzero3": "zero3", "deepspeedzerostage1": "zero1",
    "deepspeedzerostage2": "zero2", "deepspeedzerostage3": "zero3", "3dparallelism": "3d",
    "bidirectional": "both", "unidirectional": "one", "off": "none",
}  # fmt: skip
"""What pages call the options, in letters and digits alone."""

_GPUS = re.compile(
    r"^\s*([\d,]+(?:\s*k\b)?)\s*[x×*]?\s*(?!(?:k|gpus?|nodes?|machines?|instances?|hosts?)\b)([a-z].*)$", re.IGNORECASE
)

_INSTANCES = re.compile(r"^\s*([\d,]+)\s*[x×*]\s*([a-z].*)$", re.IGNORECASE)


class Claims(Frozen):
    """What the sections have in common: how the text of a figure becomes one."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, told: Any) -> Any:
        if not isinstance(told, dict):
            return told
        told, read = _split(_without_aliases(told, cls.model_fields)), {}
        for name, value in told.items():
            field = cls.model_fields.get(name)
            how = next((each for each in field.metadata if isinstance(each, Reads)), None) if field else None
            read[name] = _option(value, field) if how is None else figures(name, value, how)
        return read


def _option(value: Any, field: FieldInfo | None) -> Any:
    """`ZeRO-3` is zero3, `On-demand` on_demand, and `FSx for Lustre` shared."""
    if field is None or get_origin(field.annotation) is not Literal or not isinstance(value, str):
        return value
    named = {_letters(option): option for option in get_args(field.annotation) if option}
    word = _letters(value)
    return named.get(word) or named.get(_letters(_SYNONYMS.get(word, "")), value)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _without_aliases(told: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in told.items():
        key, unit = _ALIASES.get(name, (name, "")) if name not in fields else (name, "")
        if key in found:
            raise ValueError(f"{name} = {shown(value)}: {key} is given, too; one key may have a list")
        bare = unit and isinstance(value, str) and re.fullmatch(r"[\d.,]+", value.strip())
        found[key] = f"{value} {unit}" if bare else value
    return found


def _split(told: dict[str, Any]) -> dict[str, Any]:
    """`gpus: 32 × A100-40`, and `instance: 4 × p4d.24xlarge`, as a number and a kind."""
    gpus = _GPUS.match(told["gpus"]) if isinstance(told.get("gpus"), str) else None
    told = {"gpu": gpus[2], **told, "gpus": gpus[1]} if gpus else told
    machines = _INSTANCES.match(told["instance"]) if isinstance(told.get("instance"), str) else None
    return {"nodes": machines[1], **told, "instance": machines[2]} if machines else told


def figures(name: str, value: Any, how: Reads) -> Figures:
    """Of one key. Raises ValueError, which names it."""
    told = value if isinstance(value, list | tuple) else [value]
    return tuple(_figure(name, each, how) for each in told)


def _figure(name: str, value: Any, how: Reads) -> Figure:
    if isinstance(value, Figure):
        return value
    if not isinstance(value, str | int | float) or isinstance(value, bool) or not str(value).strip():
        raise ValueError(f"{name} = {shown(value)}: must be a figure, e.g. 57 h")
    text = str(value).strip()
    bare = how.default and re.fullmatch(r"[\d.,_eE+-]+", text)
    try:
        found = parse(how.dimension, f"{text} {how.default}" if bare else text)
    except ValueError as error:
        raise ValueError(f"{name} = {shown(value)}: {error}") from None
    return found
