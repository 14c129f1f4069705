#!/usr/bin/env python3
"""Write the references of every configuration key into docs/reference/configuration.md, from the classes themselves.

tools/config_reference.py           write it
tools/config_reference.py --check   exit 1 if what is there is out of date
"""

import json
import sys
import types
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from convoy.config.benchmark import BenchConfig
from convoy.config.errors import Classes, Keys, classes_at
from convoy.config.run import RunConfig
from generated import replaced

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "reference" / "configuration.md"
REFERENCES: dict[str, type[BaseModel]] = {"reference": RunConfig, "benchmark reference": BenchConfig}
"""By the names in their marks."""

TYPES = {
    int: "integer", float: "number", bool: "true or false", str: "text", date: "day", Any: "any value",
    type(None): "null",
}  # fmt: skip
SIGNS = {Ge: ("ge", "≥"), Gt: ("gt", ">"), Le: ("le", "≤"), Lt: ("lt", "<")}


def reference(model: type[BaseModel]) -> str:
    """Markdown: one table for each class of the tree."""
    return "\n".join(line for keys, tag, cls in classes({"": model}) for line in section(keys, tag, cls))


def classes(level: Classes, keys: Keys = ()) -> Iterator[tuple[Keys, str, type[BaseModel]]]:
    """Every class from those at `keys` downwards with its keys, and with its tag where it is one of several."""
    below: dict[str, Classes] = {}
    for tag, cls in level.items():
        yield keys, tag if len(level) > 1 else "", cls
        for name, field in cls.model_fields.items():
            below.setdefault(name, {}).update(classes_at(cls, (name,)))
            below[f"{name}[]"] = member_of(field)
    for name, inner in below.items():
        yield from classes(inner, (*keys, name))


def member_of(field: FieldInfo) -> Classes:
    """The class of each member of a list; none for plain values."""
    inner = get_args(field.annotation) if get_origin(field.annotation) is tuple else ()
    return {"": inner[0]} if inner and is_class(inner[0]) else {}


def is_class(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def section(keys: Keys, tag: str, cls: type[BaseModel]) -> Iterator[str]:
    plain = {name: field for name, field in cls.model_fields.items() if not classes_at(cls, (name,))}
    title = f"`{'.'.join(keys)}`" if keys else "Top level"
    yield f"### {title}{f': {tag}' if tag else ''}"
    yield ""
    yield first_paragraph(cls.__doc__ or "")
    yield ""
    if plain:
        yield "| key | type | default | |"
        yield "|---|---|---|---|"
        for name, field in plain.items():
            cells = (f"`{'.'.join((*keys, name))}`", type_of(field), default_of(field), field.description or "")
            yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
        yield ""


def first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def type_of(field: FieldInfo) -> str:
    limits = [
        f"{sign} {number(getattr(limit, name))}"
        for limit in field.metadata
        for kind, (name, sign) in SIGNS.items()
        if isinstance(limit, kind)
    ]
    plain, *null = described(field.annotation).split(" or null")
    return f"{plain} {', '.join(limits)}".strip() + " or null" * len(null)


def described(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return described(inner[0])
    if is_class(annotation):
        return "mapping"
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(described(part) for part in inner)
    if origin is dict:
        return f"mapping to {described(inner[1])}"
    if origin is tuple:
        return f"list of {described(inner[0])}" if inner[-1] is ... else f"list of {len(inner)} {described(inner[0])}s"
    return TYPES[annotation]


def default_of(field: FieldInfo) -> str:
    return "required" if field.is_required() else f"`{json.dumps(field.default)}`"


def number(value: float) -> str:
    return "2^63" if value == 2**63 else f"{value:g}"


def rewritten(document: str) -> str:
    """The document with the references between their marks brought up to date."""
    for name, model in REFERENCES.items():
        document = replaced(document, name, "config_reference.py", f"\n{reference(model)}")
    return document


def main(arguments: list[str]) -> int:
    old = DOCUMENT.read_text()
    new = rewritten(old)
    if arguments == ["--check"]:
        if new != old:
            print(f"{DOCUMENT.name}: a reference is out of date; run tools/config_reference.py", file=sys.stderr)
        return int(new != old)
    DOCUMENT.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
