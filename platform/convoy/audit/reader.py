"""From the text of a file of claims to checked claims."""

import re
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from convoy.audit.claims import CheckpointClaims, CollectiveClaims, LinkClaims, PageClaims, RunClaims
from convoy.config.errors import ConfigError, nearest, yaml_value
from convoy.config.yaml_text import YamlError, parse_text

SECTIONS: dict[str, type[BaseModel]] = {
    "runs": RunClaims,
    "collectives": CollectiveClaims,
    "links": LinkClaims,
    "checkpoints": CheckpointClaims,
}

_RETIRED = frozenset({"date", "price_date", "shares", "power", "energy", "tokens_per_joule"})
"""Keys of earlier versions, whose claims are not checked any more."""


def read_claims(text: str, place: str) -> PageClaims:
    """What the file says. place: its name, for the error. Raises ConfigError with one line."""
    try:
        # Every scalar stays text: 57.0 has a digit more than 57.
        tree = parse_text(text)
    except (YamlError, yaml.YAMLError) as error:
        hint = "; text with a colon in it needs quotes" if "mapping values" in str(error) else ""
        raise ConfigError(f"{place} is not YAML: {error}{hint}") from None
    if not isinstance(tree, dict) or not tree:
        raise ConfigError(f"{place}: must be a mapping of keys to values, not: {yaml_value(tree)}")
    try:
        claims = PageClaims.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{place}: {_line(error)}") from None
    _check_references(claims, place)
    return claims


def _check_references(claims: PageClaims, place: str) -> None:
    for section in SECTIONS:
        own = [each.id for each in getattr(claims, section) if each.id]
        for name in own:
            if own.count(name) > 1:
                raise ConfigError(f"{place}: {section}.id = {name}: is given twice")
    ids = [run.id for run in (claims, *claims.runs) if run.id]
    references = [("runs.relative_to", run.relative_to) for run in (claims, *claims.runs)]
    for section in ("collectives", "links", "checkpoints"):
        references += [(f"{section}.run", each.run) for each in getattr(claims, section)]
    for key, name in references:
        if name and name not in ids:
            raise ConfigError(f"{place}: {key} = {name}: no run has this id; {nearest(name, ids)}")


def _line(error: ValidationError) -> str:
    """The first complaint: the key, the value, and what would be right."""
    problems = error.errors(include_url=False)
    # A misspelled key is reported first.
    first = min(problems, key=lambda each: each["type"] != "extra_forbidden")
    where, inside = _where(first["loc"])
    if first["type"] == "extra_forbidden":
        *above, key = where
        if re.match(r"\d{3}(?!\d)", key) and not first["input"]:  # {gpus: 16,384}
            return f"{'.'.join(above)}: a figure with a comma needs quotes within {{…}}: …,{key}"
        line = f"{'.'.join(where)} = {yaml_value(first['input'])}: unknown key; {_hint(key, inside, above)}"
    elif first["type"] == "value_error":
        line = ".".join([*where, str(first["ctx"]["error"])])
    else:
        message = first["msg"].removeprefix("Input should be ")
        line = f"{'.'.join(where)} = {yaml_value(first['input'])}: must be {message}"
    return line if len(problems) == 1 else f"{line} (and {len(problems) - 1} more)"


def _where(location: tuple[int | str, ...]) -> tuple[list[str], type[BaseModel]]:
    """As a reader counts: the first of `runs` is runs[1]."""
    inside: type[BaseModel] = SECTIONS.get(str(location[0]), PageClaims) if len(location) > 1 else PageClaims
    words: list[str] = []
    for part in location:
        if isinstance(part, int) and words:
            words[-1] += f"[{part + 1}]"
        else:
            words.append(str(part))
    return words, inside


def _hint(key: str, inside: type[BaseModel], above: list[Any]) -> str:
    """Where it is a key, or the nearest one."""
    if key in _RETIRED:
        return "it is not checked any more: leave it out"
    elsewhere = [name for name, cls in SECTIONS.items() if key in cls.model_fields and cls is not inside]
    if elsewhere:
        return f"it is a key of {' and '.join(elsewhere)}" + (f", not of {above[0].split('[')[0]}" if above else "")
    return nearest(key, inside.model_fields)
