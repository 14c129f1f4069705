"""Dated facts about rented machines: instance types, GPU peaks, prices. Imports neither torch nor metaflow."""

import functools
import json
from importlib import resources
from typing import Any


@functools.cache
def load_table(name: str) -> dict[str, Any]:
    """The table `<name>.json` next to this file. It is shared: do not change it."""
    loaded: dict[str, Any] = json.loads((resources.files(__package__) / f"{name}.json").read_text())
    return loaded
