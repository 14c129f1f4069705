"""From the text of a file of claims to checked claims."""

from typing import Any

import yaml

from convoy.audit.claims import KEYS, Claims, PageClaims, read_entries
from convoy.config.errors import ConfigError, nearest, yaml_value
from convoy.config.yaml_text import YamlError, parse_text


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
        return _page(tree)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None


def _page(tree: dict[str, Any]) -> PageClaims:
    top = {key: value for key, value in tree.items() if key not in ("page", *KEYS)}
    claims = read_entries("runs", top, "")
    sections = {section: _section(section, tree.get(section, [])) for section in KEYS}
    runs = sections.pop("runs")
    parts = tuple(each for items in sections.values() for each in items)
    ids = [run.word("id") for run in (claims, *runs) if run.word("id")]
    for each, key in [*((run, "relative_to") for run in (claims, *runs)), *((part, "run") for part in parts)]:
        name = each.word(key)
        if name and name not in ids:
            raise ValueError(f"{each.section}.{key} = {name}: no run has this id; {nearest(name, ids)}")
    return PageClaims(str(tree.get("page", "")), claims, runs, parts)


def _section(section: str, items: Any) -> tuple[Claims, ...]:
    """As a reader counts: the first of `runs` is runs[1]."""
    if not isinstance(items, list) or not all(isinstance(each, dict) for each in items):
        raise ValueError(f"{section} = {yaml_value(items)}: must be a list of mappings")
    claims = tuple(read_entries(section, each, f"{section}[{at + 1}].") for at, each in enumerate(items))
    own = [each.word("id") for each in claims if each.word("id")]
    for name in own:
        if own.count(name) > 1:
            raise ValueError(f"{section}.id = {name}: appears twice")
    return claims
