"""What is wrong with a Kubernetes manifest: by the schemas of Kubernetes and of custom resource definitions, and by the
rules in CEL that these contain."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import celpy
import celpy.celtypes
import jsonschema
import kubernetes_validate
import yaml
from tools.fetch_crds import REPOSITORY, fetch

KUBERNETES = "1.36"
DEFINITIONS = REPOSITORY / "build" / "crds"
GIVEN = REPOSITORY.parent / "shared" / "crds"
"""Where they are at hand, they are taken from there."""

Manifest = dict[str, Any]
Schema = dict[str, Any]


def problems(manifest: Manifest) -> list[str]:
    """Empty: the API server would accept it."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    name = f"{manifest['kind']} {manifest['metadata']['name']}"
    if (definition := definitions().get((group, manifest["kind"]))) is None:
        try:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            return [f"{name}: {'.'.join(map(str, error.path))}: {error.message}"]
        return []
    schema = next(each for each in definition["spec"]["versions"] if each["name"] == version)["schema"][
        "openAPIV3Schema"
    ]
    found = [
        f"{name}: {error.json_path}: {error.message}" for error in _validator(_strict(schema)).iter_errors(manifest)
    ]
    return found or [f"{name}: {path}: {rule}" for path, rule in _broken_rules(schema, manifest, "")]


@cache
def definitions() -> dict[tuple[str, str], Schema]:
    """Custom resource definitions by group and kind."""
    files = fetch(DEFINITIONS, GIVEN if GIVEN.is_dir() else None)
    loaded = [yaml.load(path.read_text(), Loader=yaml.CSafeLoader) for path in files]
    return {(each["spec"]["group"], each["spec"]["names"]["kind"]): each for each in loaded}


def _validator(schema: Schema) -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(schema)


def _strict(schema: Schema) -> Schema:
    """As a JSON schema that knows integers or strings, and refuses fields that are not named."""
    made = dict(schema)
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    if made.get("nullable"):
        made["type"] = [made["type"], "null"]
    if "properties" in made:
        made["properties"] = {name: _strict(each) for name, each in made["properties"].items()}
        if not made.get("x-kubernetes-preserve-unknown-fields") and "additionalProperties" not in made:
            known = {"apiVersion", "kind", "metadata"} if "spec" in made["properties"] else set[str]()
            made["additionalProperties"] = False
            made["properties"] = {**{name: {} for name in known}, **made["properties"]}
    for name in ("items", "additionalProperties"):
        if isinstance(made.get(name), dict):
            made[name] = _strict(made[name])
    return made


def _broken_rules(schema: Schema, value: Any, path: str) -> Iterator[tuple[str, str]]:
    for each in schema.get("x-kubernetes-validations", ()):
        # Of changes: there is no earlier object.
        if "oldSelf" not in each["rule"] and not _holds(each["rule"], json.dumps(value)):
            yield path or ".", each.get("message", each["rule"])
    if isinstance(value, dict):
        inner = schema.get("properties", {})
        others = schema.get("additionalProperties")
        for name, part in value.items():
            if name in inner or isinstance(others, dict):
                yield from _broken_rules(inner.get(name) or others, part, f"{path}.{name}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _broken_rules(schema.get("items", {}), part, f"{path}[{index}]")


@cache
def _holds(rule: str, value: str) -> bool:
    """Manifests of one kind have most of their parts in common. value: JSON of it."""
    return bool(evaluate(rule, self=json.loads(value)))


def evaluate(expression: str, **names: Any) -> Any:
    """The value of a CEL expression, with the functions of Kubernetes that are used here."""
    program = _program(expression)
    return program.evaluate({name: celpy.json_to_cel(value) for name, value in names.items()})


@cache
def _program(expression: str) -> Any:
    environment = celpy.Environment()
    functions = {"find": _find, "split": _split}
    return environment.program(environment.compile(expression), functions=functions)


def _find(text: str, pattern: str) -> celpy.celtypes.StringType:
    """The first match of a pattern, or nothing."""
    match = re.search(str(pattern), str(text))
    return celpy.celtypes.StringType(match[0] if match else "")


def _split(text: str, by: str) -> celpy.celtypes.ListType:
    return celpy.celtypes.ListType([celpy.celtypes.StringType(part) for part in str(text).split(str(by))])


def documents(text: str) -> list[Manifest]:
    """Those of a YAML stream."""
    return [each for each in yaml.safe_load_all(text) if each]


def read_manifests(path: Path) -> list[Manifest]:
    return documents(path.read_text())
