"""The scripts of tools/, as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

TOOLS = Path(__file__).resolve().parents[1] / "tools"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(TOOLS) not in sys.path:  # as when a tool is run, for what tools share
        sys.path.append(str(TOOLS))
    spec.loader.exec_module(module)
    return module
