"""The source stays easy to find one's way in: small folders, and no two packages of a room that import each other."""

import ast
from collections.abc import Iterator
from pathlib import Path

import convoy

HOUSE = Path(convoy.__file__).parent
FOLDERS = sorted({path.parent for path in HOUSE.rglob("*.py")})
MAX_ENTRIES = 20
MAX_ENTRIES_OF_ROOT = 28


def test_a_folder_has_few_modules_and_packages() -> None:
    """Apart from `__init__`, `__main__` and data files."""
    too_full = {
        folder: len(entries)
        for folder in FOLDERS
        if len(entries := list(entries_of(folder))) > (MAX_ENTRIES_OF_ROOT if folder == HOUSE else MAX_ENTRIES)
    }
    assert too_full == {}


def test_rooms_are_two_levels_deep_at_most() -> None:
    assert [folder for folder in FOLDERS if len(folder.relative_to(HOUSE).parts) > 2] == []


def test_no_two_packages_of_a_room_import_each_other() -> None:
    imports = {
        (package, imported)
        for path in HOUSE.rglob("*.py")
        if (package := package_of(".".join(path.relative_to(HOUSE.parent).with_suffix("").parts)))
        for name in imported_names(ast.parse(path.read_text()))
        if (imported := package_of(name)) and imported != package
    }
    assert ("benchmark.suites", "benchmark.analysis") in imports
    assert [pair for pair in sorted(imports) if pair[::-1] in imports] == []


def entries_of(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        is_module = path.suffix == ".py" and path.stem not in ("__init__", "__main__")
        if is_module or (path.is_dir() and (path / "__init__.py").exists()):
            yield path


def package_of(module: str) -> str:
    """`room.package` of a module that lies in a package of a room; empty for every other module."""
    parts = module.split(".")
    is_inside = parts[0] == "convoy" and len(parts) > 2 and (HOUSE / parts[1] / parts[2]).is_dir()
    return ".".join(parts[1:3]) if is_inside else ""


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Names of all modules that a module may import, also within functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
