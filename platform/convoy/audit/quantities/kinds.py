"""Kinds of figures in a file of claims, and how their text is read."""

import itertools
import re
from typing import Annotated, Any, NamedTuple

from pydantic import model_validator

from convoy.audit.quantities.compound_text import split
from convoy.audit.quantities.key_aliases import without_aliases
from convoy.audit.quantities.option_aliases import option
from convoy.audit.quantities.span import Figure
from convoy.audit.quantities.units import Dimension, parse
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


class Claims(Frozen):
    """What the sections have in common: how the text of a figure becomes one."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, told: Any) -> Any:
        if not isinstance(told, dict):
            return told
        told, read = split(without_aliases(told, cls.model_fields), cls.model_fields), {}
        for name, value in told.items():
            field = cls.model_fields.get(name)
            how = next((each for each in field.metadata if isinstance(each, Reads)), None) if field else None
            read[name] = option(name, value, field) if how is None else figures(name, value, how)
        return read


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
