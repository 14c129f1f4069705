"""One line for what is wrong with a configuration: the key, the value, and what is allowed."""

import difflib
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError


class ConfigError(ValueError):
    """Bad input known before the run starts; its text is the one line to show. The exit code is 2."""


def one_line(error: ValidationError, model: type[BaseModel]) -> str:
    """The first complaint of `error` in the user's words, and how many more there are."""
    problems = error.errors(include_url=False, include_context=True)
    first = problems[0]
    line = _describe(first, model)
    return line if len(problems) == 1 else f"{line} (and {len(problems) - 1} more)"


def nearest(name: str, known: list[str]) -> str:
    """`; did you mean X?` when some known name is close, else the list of what is known."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"


def _describe(problem: Any, model: type[BaseModel]) -> str:
    keys = _user_keys(problem["loc"], model)
    key = ".".join(keys)
    value = problem["input"]
    if problem["type"] == "extra_forbidden":
        hint = nearest(keys[-1], _fields_at(keys[:-1], model))
        return f"{key} = {_short(value)}: unknown key; {hint}"
    if problem["type"] == "missing":
        return f"{key}: required, and not given"
    if problem["type"] == "value_error":
        # Our own validators name the key below `loc` and the value themselves.
        text = str(problem["ctx"]["error"])
        return f"{key}.{text}" if key else text
    return f"{key} = {_short(value)}: {_allowed(problem)}"


def _allowed(problem: Any) -> str:
    text: str = problem["msg"].removeprefix("Input ").removeprefix("Value ")
    return text[0].lower() + text[1:]


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, str | int | float | bool) or value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _user_keys(location: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    """The location without the union tags pydantic puts into it."""
    keys: list[str] = []
    for part in location:
        here = _fields_at(keys, model)
        if here and str(part) not in here and _is_tag(str(part), keys, model):
            continue
        keys.append(str(part))
    return keys


def _is_tag(part: str, keys: list[str], model: type[BaseModel]) -> bool:
    return len(list(_models_at(keys, model))) > 1 and part in _tags_at(keys, model)


def _tags_at(keys: list[str], model: type[BaseModel]) -> set[str]:
    tags = {"transformer", "custom"}
    for found in _models_at(keys, model):
        kind = found.model_fields.get("kind")
        if kind is not None:
            tags.update(str(v) for v in get_args(kind.annotation))
    return tags


def _fields_at(keys: list[str], model: type[BaseModel]) -> list[str]:
    return sorted({name for found in _models_at(keys, model) for name in found.model_fields})


def _models_at(keys: list[str], model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    if not keys:
        yield model
        return
    for parent in _models_at(keys[:-1], model):
        field = parent.model_fields.get(keys[-1])
        if field is not None:
            yield from _models_in(field.annotation)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Annotated, typing.Union, types.UnionType):
        for part in get_args(annotation):
            yield from _models_in(part)
