#!/usr/bin/env python3
"""Write the variables that each version of NCCL reads into platform/convoy/catalog/nccl_variable_names.json.

tools/nccl_variable_names.py REPOSITORY           a clone of https://github.com/NVIDIA/nccl with its tags

A name is counted where the sources declare a parameter (NCCL_PARAM, DEFINE_NCCL_PARAM) or quote it.
"""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

CATALOG = Path(__file__).resolve().parents[1] / "platform" / "convoy" / "catalog" / "nccl_variable_names.json"
FIRST = (2, 4, 2)
DECLARATIONS = (
    (r'(?<!_)NCCL_PARAM\(\s*\w+\s*,\s*"([A-Z0-9_]+)"', "NCCL_{}"),
    (r"DEFINE_NCCL_PARAM\([^,]+,[^,]+,\s*(NCCL_\w+)", "{}"),
    (r'"(NCCL_[A-Z0-9_]+)"', "{}"),
)
NO_VARIABLES = r"NCCL_USE_CMAKE|\w+_INITIALIZER"
"""Quoted in the sources, but not read from the environment."""


def git(repository: str, *words: str) -> str:
    done = subprocess.run(["git", "-C", repository, *words], capture_output=True, text=True, errors="replace")
    return done.stdout


def versions(repository: str) -> dict[tuple[int, ...], str]:
    """The last tag of each version, oldest first."""
    tags = (re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)-(\d+)", tag) for tag in git(repository, "tag").split())
    found = sorted((tuple(map(int, match.groups())), match[0]) for match in tags if match)
    return {numbers[:3]: tag for numbers, tag in found if numbers[:3] >= FIRST}


def names(repository: str, tag: str) -> set[str]:
    """What the sources of one version read."""
    text = git(repository, "grep", "-h", "-E", "-A1", 'NCCL_PARAM\\(|"NCCL_[A-Z0-9_]+"', tag, "--", "src")
    found = {form.format(name) for pattern, form in DECLARATIONS for name in re.findall(pattern, text)}
    return {name for name in found if not re.fullmatch(NO_VARIABLES, name)}


def main(repository: str) -> None:
    spans: dict[str, list[str]] = {}
    known = {".".join(map(str, numbers)): tag for numbers, tag in versions(repository).items()}
    for version, tag in known.items():
        for name in names(repository, tag):
            spans.setdefault(name, [version, version])[1] = version
    rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(spans[name])}" for name in sorted(spans))
    CATALOG.write_text(
        f'{{\n  "date": "{datetime.now(UTC):%Y-%m-%d}",\n'
        '  "source": "https://github.com/NVIDIA/nccl",\n'
        f'  "first": "{next(iter(known))}",\n  "last": "{list(known)[-1]}",\n  "variables": {{\n{rows}\n  }}\n}}\n'
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
