"""One line for what is wrong with a configuration, the key, the value and what is allowed; and the tree of keys that a
configuration class spans, read from its fields."""

import difflib
import json
import re
import types
import typing
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic.fields import FieldInfo

Keys = tuple[str, ...]
Classes = dict[str, type[BaseModel]]
"""The classes a key can hold, by the tag by which pydantic distinguishes them; more than one: a union."""


def classes_at(model: type[BaseModel], keys: Sequence[str]) -> Classes:
    """The classes whose fields may stand below `keys`; none for a plain value or an unknown key."""
    classes: Classes = {"": model}
    for key in keys:
        fields = [cls.model_fields[key] for cls in classes.values() if key in cls.model_fields]
        classes = {tag: cls for field in fields for tag, cls in _classes_in(field.annotation).items()}
    return classes


def locate_error(model: type[BaseModel], location: Sequence[int | str]) -> tuple[Keys, Classes]:
    """A pydantic error's location as the keys a user writes, and the class (of a union: the chosen one) it lies in."""
    keys: list[str] = []
    inside: Classes = {"": model}
    below = inside
    for part in map(str, location):
        if len(below) > 1:  # pydantic names the chosen class of a union right after the union's own key
            below = {part: below[part]} if part in below else below
            continue
        inside, field = below, _find_field(below, part)
        keys.append(part)
        below = _classes_in(field.annotation) if field else {}
    return tuple(keys), inside


def leaf_keys(model: type[BaseModel], prefix: Keys = ()) -> Iterator[Keys]:
    """Every key that holds a plain value, as a path from the top; of unions those of every class."""
    for name, field in model.model_fields.items():
        below = _classes_in(field.annotation)
        if not below:
            yield (*prefix, name)
        for cls in below.values():
            yield from leaf_keys(cls, (*prefix, name))


def _find_field(classes: Classes, name: str) -> FieldInfo | None:
    return next((cls.model_fields[name] for cls in classes.values() if name in cls.model_fields), None)


def _classes_in(annotation: Any, tag: str = "") -> Classes:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {tag or _kind_tag(annotation): annotation}
    if get_origin(annotation) is Annotated:
        inner, *extras = get_args(annotation)
        return _classes_in(inner, next((str(extra.tag) for extra in extras if isinstance(extra, Tag)), ""))
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return {name: cls for part in get_args(annotation) for name, cls in _classes_in(part).items()}
    return {}


def _kind_tag(cls: type[BaseModel]) -> str:
    field = cls.model_fields.get("kind")
    named = field is not None and get_origin(field.annotation) is Literal
    return str(get_args(field.annotation)[0]) if field is not None and named else cls.__name__


class ConfigError(ValueError):
    """Bad input known before the run starts; its text is the one line to show. The exit code is 2."""

    def __init__(self, text: object) -> None:
        super().__init__(printable(str(text)))


def one_line(error: BaseException) -> str:
    """The text of an error for people, or its kind if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def printable(text: str, keep: str = "") -> str:
    """The text as a terminal can show it: what would move the cursor, change a title or reverse the order of letters
    is written as an escape sequence of Python. keep: characters that stay."""
    return "".join(char if _is_legible(char) or char in keep else repr(char)[1:-1] for char in text)


def _is_legible(char: str) -> bool:
    """Spaces of any kind too, and what joins letters or not in Persian, and emoji."""
    return char.isprintable() or char in "\u200c\u200d" or unicodedata.category(char) == "Zs"


class PrerequisiteMissing(ConfigError):
    """The configuration is right, but something that the run needs is not there yet: a package, a bucket, an account.

    A run is refused for it; a dry run lists it.
    """


def missing_extra(package: str, extra: str) -> str:
    """What to install for a package that one of Convoy's extras brings."""
    return f"{package} is not installed: pip install 'metaflow-convoy[{extra}]'"


def collect_errors(demands: Iterable[Callable[[], object]]) -> list[ConfigError]:
    """What the demands raise, in their order, each text once."""
    errors: dict[str, ConfigError] = {}
    for demand in demands:
        try:
            demand()
        except ConfigError as error:
            errors.setdefault(str(error), error)
    return list(errors.values())


def collect_missing(demands: Iterable[Callable[[], object]]) -> list[PrerequisiteMissing]:
    """What the demands find missing. Raises the first ConfigError of another kind."""
    missing = []
    for error in collect_errors(demands):
        if not isinstance(error, PrerequisiteMissing):
            raise error
        missing.append(error)
    return missing


def first_problem_line(error: ValidationError, model: type[BaseModel]) -> str:
    """The first complaint of `error` in the user's words, and how many more there are."""
    problems = error.errors(include_url=False, include_context=True)
    missing = [problem for problem in problems if problem["type"] == "missing"]
    # A misspelled key is often why another one is missing, so the misspelled one is reported first.
    others = [problem for problem in problems if problem["type"] != "missing"]
    if others:
        line, described = _describe_problem(others[0], model), 1
    else:
        names = [".".join(locate_error(model, problem["loc"])[0]) for problem in missing]
        line, described = f"{', '.join(names)}: required, but missing", len(missing)
    return line if len(problems) == described else f"{line} (and {len(problems) - described} more)"


def first_mistake(error: ValidationError) -> str:
    """Where in a file that a program wrote the first mistake is, and what it is, in one line."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"] if part != "[key]") or "the file"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"


def name_hint(name: str, names: Iterable[str]) -> str:
    """`did you mean X?` when some known name is close, else the list of what is known."""
    close = _closest(name, names)
    return f"did you mean {close}?" if close else f"known: {', '.join(sorted(names))}"


_CREDENTIALS = re.compile(r"""(?<=://)[^\s"']*@""")


def yaml_value(value: Any) -> str:
    """A value as one would write it in YAML, without the user and password of a URL, shortened to 60 characters."""
    text = _CREDENTIALS.sub("...@", value if isinstance(value, str) else json.dumps(value, default=str))
    return text if len(text) <= 60 else text[:57] + "..."


def _describe_problem(problem: Any, model: type[BaseModel]) -> str:
    keys, _ = locate_error(model, problem["loc"])
    key, value = ".".join(keys), yaml_value(problem["input"])
    match problem["type"]:
        case "extra_forbidden":
            return f"{key} = {value}: unknown key; {_unknown_key_hint(problem['loc'], model)}"
        case "value_error":
            # Our own validators name the key below `loc` and the value themselves.
            text = str(problem["ctx"]["error"])
            return f"{key}.{text}" if key else text
        case "union_tag_invalid":
            tag, choices = str(problem["ctx"]["tag"]), _quoted_words(problem["ctx"]["expected_tags"])
            return f"{key}.kind = {tag}: {must_be_one_of(tag, choices)}"
        case "union_tag_not_found":
            kinds = ", ".join(classes_at(model, keys))
            return f"{key}.kind: required, but missing; one of {kinds}"
        case "literal_error":
            return f"{key} = {value}: {must_be_one_of(value, _quoted_words(problem['ctx']['expected']))}"
        case "string_pattern_mismatch":
            return f"{key} = {value}: must have the form {_expected_form(problem, model)}"
        case _:
            return f"{key} = {value}: must be {_allowed_text(problem)}" if key else f"must be {_allowed_text(problem)}"


_TYPES = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "string": "text; put it in quotes",
    "dict": "a mapping of keys to values",
    "model": "a mapping of keys to values",
    "tuple": "a list",
    "finite": "a finite number",
}
"""By the first word of pydantic's error type, e.g. `int_parsing`."""


def _allowed_text(problem: Any) -> str:
    limits = {name: _whole_as_int(limit) for name, limit in problem.get("ctx", {}).items()}
    match problem["type"]:
        case "greater_than_equal":
            return f"at least {limits['ge']}"
        case "greater_than":
            return f"more than {limits['gt']}"
        case "less_than_equal":
            return f"at most {limits['le']}"
        case "less_than":
            return f"below {limits['lt']}"
        case "too_long" | "too_short":
            return f"a list of {limits.get('max_length') or limits.get('min_length')}, not {limits['actual_length']}"
        case "invalid_key":
            return "named by text; put the key in quotes"
        case kind:
            text: str = problem["msg"].removeprefix("Input ").removeprefix("Value ").removeprefix("should be ")
            return _TYPES.get(kind.split("_")[0], text)


def _whole_as_int(limit: Any) -> Any:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _quoted_words(text: str) -> list[str]:
    return re.findall(r"'([^']*)'", text)


def must_be_one_of(name: str, choices: Sequence[str]) -> str:
    """`must be one of X, Y`, and the choice that `name` is probably meant to be."""
    close = _closest(name, choices)
    return f"must be one of {', '.join(choices)}" + (f"; did you mean {close}?" if close else "")


def _expected_form(problem: Any, model: type[BaseModel]) -> str:
    """What the field's docstring says up to its first semicolon: a regular expression helps nobody."""
    keys, inside = locate_error(model, problem["loc"])
    field = _find_field(inside, keys[-1])
    described = field.description if field and field.description else problem["ctx"]["pattern"]
    return str(described).split(";")[0].replace("`", "")


def _unknown_key_hint(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    keys, inside = locate_error(model, location)
    *above, name = keys
    siblings = {field for cls in inside.values() for field in cls.model_fields}
    others = [tag for tag, cls in classes_at(model, above).items() if tag not in inside and name in cls.model_fields]
    if others and len(inside) == 1:
        return f"a key of {', '.join(others)}, not of {next(iter(inside))}"
    elsewhere = _keys_named(name, model)
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere[:3])}?"
    close = _closest(name, siblings)
    if close:
        return f"did you mean {'.'.join([*above, close])}?"
    far = _closest(name, {keys[-1] for keys in leaf_keys(model)})
    return f"did you mean {' or '.join(_keys_named(far, model)[:3])}?" if far else name_hint(name, siblings)


def _keys_named(name: str, model: type[BaseModel]) -> list[str]:
    """Every full key whose last part is `name`."""
    return list(dict.fromkeys(".".join(keys) for keys in leaf_keys(model) if keys[-1] == name))


def _closest(name: str, names: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.6)), None)
