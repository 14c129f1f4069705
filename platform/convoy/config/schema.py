"""The tree of keys that a configuration class spans, read from its fields."""

import types
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, Tag
from pydantic.fields import FieldInfo

Keys = tuple[str, ...]
Classes = dict[str, type[BaseModel]]
"""The classes a key can hold, by the tag pydantic tells them apart with; more than one: a union."""


def classes_at(model: type[BaseModel], keys: Sequence[str]) -> Classes:
    """The classes whose fields may stand below `keys`; none for a plain value or an unknown key."""
    classes: Classes = {"": model}
    for key in keys:
        fields = [cls.model_fields[key] for cls in classes.values() if key in cls.model_fields]
        classes = {tag: cls for field in fields for tag, cls in _classes_in(field.annotation).items()}
    return classes


def locate(model: type[BaseModel], location: Sequence[int | str]) -> tuple[Keys, Classes]:
    """A pydantic error's location as the keys a user writes, and the class (of a union: the chosen one) it lies in."""
    keys: list[str] = []
    inside: Classes = {"": model}
    below = inside
    for part in map(str, location):
        if len(below) > 1:  # pydantic names the chosen class of a union right after the union's own key
            below = {part: below[part]} if part in below else below
            continue
        inside, field = below, _field(below, part)
        keys.append(part)
        below = _classes_in(field.annotation) if field else {}
    return tuple(keys), inside


def field_at(model: type[BaseModel], location: Sequence[int | str]) -> FieldInfo | None:
    """The field a pydantic error's location lies in."""
    keys, inside = locate(model, location)
    return _field(inside, keys[-1]) if keys else None


def leaves(model: type[BaseModel], above: Keys = ()) -> Iterator[Keys]:
    """Every key that holds a plain value, as a path from the top; of unions those of every class."""
    for name, field in model.model_fields.items():
        below = _classes_in(field.annotation)
        if not below:
            yield (*above, name)
        for cls in below.values():
            yield from leaves(cls, (*above, name))


def _field(inside: Classes, name: str) -> FieldInfo | None:
    return next((cls.model_fields[name] for cls in inside.values() if name in cls.model_fields), None)


def _classes_in(annotation: Any, tag: str = "") -> Classes:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {tag or _kind(annotation): annotation}
    if get_origin(annotation) is Annotated:
        inner, *extras = get_args(annotation)
        return _classes_in(inner, next((str(extra.tag) for extra in extras if isinstance(extra, Tag)), ""))
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return {name: cls for part in get_args(annotation) for name, cls in _classes_in(part).items()}
    return {}


def _kind(cls: type[BaseModel]) -> str:
    field = cls.model_fields.get("kind")
    named = field is not None and get_origin(field.annotation) is Literal
    return str(get_args(field.annotation)[0]) if field is not None and named else cls.__name__
