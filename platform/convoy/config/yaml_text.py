"""YAML as people mean it: no key twice, 1e-3 is a number, a date is text, and so is a time such as 1:30. `on` before a
colon is a name, as in `notify.on`."""

import json
import re
from typing import Any

import yaml
from yaml.constructor import ConstructorError

_BOOL = "tag:yaml.org,2002:bool"
_FLOAT = "tag:yaml.org,2002:float"
_TEXT = "tag:yaml.org,2002:str"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class YamlError(ValueError):
    """Text that is not YAML; says where, and what was expected."""


def parse_yaml(text: str) -> Any:
    """The plain value (of JSON's types) that `text` holds. Raises YamlError."""
    return _load_yaml(text, _DataLoader)


def parse_yaml_as_text(text: str) -> Any:
    """The same with every scalar as the text it is written with: 57.0 is not 57. Raises YamlError."""
    return _load_yaml(text, _TextLoader)


def _load_yaml(text: str, loader: "type[_DataLoader | _TextLoader]") -> Any:
    try:
        value = yaml.load(text, loader)
        json.dumps(value)
        return value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise YamlError(f"{where}{error.problem}") from None
    except RecursionError:
        raise YamlError("nested too deep") from None
    except (yaml.YAMLError, ValueError, TypeError) as error:  # the last two: a circle, a set, raw bytes
        raise YamlError(" ".join(str(error).split())) from None


class _UniqueKeyLoader(yaml.constructor.BaseConstructor):
    """PyYAML's loaders take the last of two equal keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key in keys and key != "<<":
                raise ConstructorError(None, None, f"the key {key!r} appears twice", key_node.start_mark)
            keys.add(key)
            if key_node.tag == _BOOL and key_node.value.lower() not in ("true", "false"):
                key_node.tag = _TEXT  # YAML 1.1 takes on, off, yes and no for truth values
        return super().construct_mapping(node, deep)


class _DataLoader(_UniqueKeyLoader, yaml.SafeLoader):
    """PyYAML's safe loader reads YAML 1.1 numbers and dates."""

    # A copy: the resolvers of SafeLoader itself belong to everybody.
    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _TextLoader(_UniqueKeyLoader, yaml.BaseLoader):
    """PyYAML's base loader resolves no scalar."""


# YAML 1.1 counts 1:30 in sixties, as 90, whatever the unit. The first pattern that matches decides.
for _sign in "-+0123456789":
    _DataLoader.yaml_implicit_resolvers[_sign].insert(0, (_TEXT, re.compile(r"^[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?$")))

_DataLoader.add_implicit_resolver(_FLOAT, re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789"))
