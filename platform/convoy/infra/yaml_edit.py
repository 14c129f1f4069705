"""Values are set in the text of a YAML file; its comments and the order of its keys stay."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from convoy.config.errors import ConfigError, Keys
from convoy.config.yaml_text import parse_yaml


def set_values(text: str, values: Mapping[Keys, Any], replaced: tuple[str, str]) -> str:
    """The text with the values at these keys, and one piece of text replaced by another in all other values.

    text: of a YAML mapping. Raises ConfigError where this cannot be done line by line, as with anchors.
    """
    expected = _replace_in_tree(parse_yaml(text), *replaced)
    edited = _replace_in_values(text, *replaced)
    for keys, value in values.items():
        _set_in_tree(expected, keys, value)
        edited = _set_value(edited, keys, value)
    if parse_yaml(edited) != expected:
        names = ", ".join(".".join(keys) for keys in values)
        raise ConfigError(f"this YAML cannot be edited (does it have anchors?); set by hand: {names}")
    return edited


def _replace_in_tree(tree: Any, old: str, new: str) -> Any:
    if isinstance(tree, dict):
        return {key: _replace_in_tree(value, old, new) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_replace_in_tree(value, old, new) for value in tree]
    return tree.replace(old, new) if isinstance(tree, str) else tree


def _set_in_tree(tree: dict[str, Any], keys: Keys, value: Any) -> None:
    for key in keys[:-1]:
        if not isinstance(tree.get(key), dict):
            tree[key] = {}
        tree = tree[key]
    tree[keys[-1]] = value


def _replace_in_values(text: str, old: str, new: str) -> str:
    scalars = {node.start_mark.index: node for node in _scalars(yaml.compose(text, yaml.SafeLoader))}
    for start in sorted(scalars, reverse=True):
        end = scalars[start].end_mark.index
        text = text[:start] + text[start:end].replace(old, new) + text[end:]
    return text


def _scalars(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """The values below a node."""
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _scalars(value)
    elif isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _scalars(value)


def _set_value(text: str, keys: Keys, value: Any) -> str:
    node: Any = yaml.compose(text, yaml.SafeLoader)
    in_flow = False
    for depth, key in enumerate(keys):
        entries = {entry[0].value: entry for entry in node.value} if isinstance(node, yaml.MappingNode) else {}
        if key not in entries:
            return _insert(text, node, keys[depth:], value)
        in_flow = in_flow or bool(node.flow_style)
        key_node, node = entries[key]
        if depth == len(keys) - 1 or not isinstance(node, yaml.MappingNode):
            return _replace(text, key_node, node, _written(_nested(keys[depth + 1 :], value), in_flow))
    return text


def _nested(keys: Keys, value: Any) -> Any:
    return {keys[0]: _nested(keys[1:], value)} if keys else value


def _written(value: Any, in_flow: bool) -> str:
    """On one line. in_flow: it will stand within brackets, where more text needs quotes."""
    if isinstance(value, str) and not in_flow:
        plain = yaml.safe_dump(value, width=1_000_000).removesuffix("...\n").strip()
        if "\n" not in plain:
            return plain
    return yaml.safe_dump([value], default_flow_style=True, width=1_000_000, sort_keys=False).strip()[1:-1]


def _replace(text: str, key: yaml.Node, old: yaml.Node, written: str) -> str:
    """Replace a value. A comment after it stays in its column; comments between the lines of a value move below it."""
    colon = text.index(":", key.end_mark.index) + 1
    end = max(_end(text, old), colon)
    before, tail, new = text[colon:end], text[end:], f" {written}"
    head, *lines = before.split("\n")
    if lines:
        comments = [match[0].strip() for line in (head, *lines) if (match := re.search(r"(?:^|\s)#.*", line))]
        new += "".join(f"\n{' ' * key.start_mark.column}{comment}" for comment in comments)
    elif gap := re.match(r" +(?=#)", tail):
        tail = " " * max(2, len(before) + len(gap[0]) - len(new)) + tail[gap.end() :]
    return text[:colon] + new + tail


def _is_flow(node: Any) -> bool:
    """Whether it is written with brackets, or is a scalar."""
    return isinstance(node, yaml.ScalarNode) or bool(node.flow_style)


def _end(text: str, node: yaml.Node) -> int:
    """Where the node's own text ends. PyYAML counts what follows a block, comments too, as part of it."""
    if _is_flow(node) or not node.value:
        return len(text[: node.end_mark.index].rstrip())
    last = node.value[-1]
    return _end(text, last[1] if isinstance(last, tuple) else last)


def _insert(text: str, mapping: yaml.Node | None, keys: Keys, value: Any) -> str:
    """As the last key of the mapping."""
    if not isinstance(mapping, yaml.MappingNode) or not mapping.value:
        raise ConfigError(f"{'.'.join(keys)}: this YAML has no place for it")
    end, in_flow = _end(text, mapping), bool(mapping.flow_style)
    new = f"{_written(keys[0], True)}: {_written(_nested(keys[1:], value), in_flow)}"
    if in_flow:
        inside = text[: end - 1].rstrip()
        return f"{inside}, {new}{text[end - 1 :]}"
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    return f"{text[:line_end]}\n{' ' * mapping.value[0][0].start_mark.column}{new}{text[line_end:]}"
