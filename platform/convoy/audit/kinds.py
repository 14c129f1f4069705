"""Kinds of figures in a file of claims, and how their text is read."""

import itertools
import re
from typing import Annotated, Any, NamedTuple

from pydantic import model_validator

from convoy.audit.keys import without_aliases
from convoy.audit.options import option
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

_GPUS = re.compile(
    r"^\s*((?:up to|over|more than|at least|about|around|~|≈|[<>])?\s*[\d,]+(?:\s*(?:-|–|to)\s*[\d,]+)?(?:\s*k\b)?)"  # noqa: RUF001
    r"\s*[x×*]?\s*(?!(?:k|gpus?|nodes?|machines?|instances?|hosts?)\b)((?:\d+ ?GI?B )?[a-z].*)$",
    re.IGNORECASE,
)

_PER_NODE = re.compile(r"^\s*\d+[a-z ]*(?:/|\bper\b)\s*(?:node|machine|instance|host)\s*$", re.IGNORECASE)

_OF_STEPS = re.compile(r"\d\s*k?\s*(?:steps?|iterations?|iters?|updates?)\s*$", re.IGNORECASE)

_RECOVERED = re.compile(r"^\s*([\d,]+)\s*(?:/|of|out of)\s*([\d,]+)\s*$", re.IGNORECASE)

_INSTANCES = re.compile(
    r"^\s*(?P<number>[\d,]+)\s*[x×*]?\s*(?P<type>[a-z][\w.-]*)(?: instances?| nodes?)?$|"
    r"^\s*(?P<first>[a-z][\w.-]*)\s*[x×*]\s*(?P<last>[\d,]+)$",
    re.IGNORECASE,
)


class Claims(Frozen):
    """What the sections have in common: how the text of a figure becomes one."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, told: Any) -> Any:
        if not isinstance(told, dict):
            return told
        told, read = _split(without_aliases(told, cls.model_fields)), {}
        for name, value in told.items():
            field = cls.model_fields.get(name)
            how = next((each for each in field.metadata if isinstance(each, Reads)), None) if field else None
            read[name] = option(name, value, field) if how is None else figures(name, value, how)
        return read


def _split(told: dict[str, Any]) -> dict[str, Any]:
    """`gpus: 32 × A100-40`, and `instance: 4 × p4d.24xlarge`, as a number and a kind; `recovered: 12/12` as two."""
    gpus = told.get("gpus")
    if isinstance(gpus, str) and "gpus_per_node" not in told and _PER_NODE.search(gpus):
        told = {"gpus_per_node" if each == "gpus" else each: value for each, value in told.items()}
    interval = told.get("interval")
    if isinstance(interval, str) and _OF_STEPS.search(interval):
        steps = {"interval": "interval_steps"}
        told = {
            steps.get(key, key): re.sub(r"^every ", "", value) if key in steps else value for key, value in told.items()
        }
    recovered = _RECOVERED.match(told["recovered"]) if isinstance(told.get("recovered"), str) else None
    if recovered:
        before = told.get("interruptions", recovered[2])
        there = [*before, recovered[2]] if isinstance(before, list) else [before, recovered[2]]
        told = {**told, "recovered": recovered[1], "interruptions": list(dict.fromkeys(map(str, there)))}
    gpus = _GPUS.match(told["gpus"]) if isinstance(told.get("gpus"), str) else None
    told = {"gpu": gpus[2], **told, "gpus": gpus[1]} if gpus else told
    machines = _INSTANCES.match(told["instance"]) if isinstance(told.get("instance"), str) else None
    if machines is None:
        return told
    nodes, name = machines["number"] or machines["last"], machines["type"] or machines["first"]
    return {"nodes": nodes, **told, "instance": name}


def figures(name: str, value: Any, how: Reads) -> Figures:
    """Of one key. Raises ValueError, which names it."""
    told = value if isinstance(value, list | tuple) else [value]
    for first, second in itertools.pairwise(map(str, told)):
        if re.fullmatch(r"[^\d]*\d{1,3}", first) and re.match(r"\d{3}(?!\d)", second):
            raise ValueError(
                f"{name} = {shown(value)}: a figure with a comma needs quotes in a list, '{first},{second}'"
            )
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
