"""How much a slow family of tests tries: a bounded sample in CI, the full count with CONVOY_CAMPAIGN=full."""

import os
import subprocess
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings

FULL = 10
"""Times as many drills as in CI."""


def examples(count: int) -> settings:
    """Settings of a property test: a third of `count` examples in CI, ten times `count` in a campaign."""
    return settings(max_examples=times(count) if in_full() else -(-count // 3), deadline=None)


def in_full() -> bool:
    """The full counts are asked for."""
    return os.environ.get("CONVOY_CAMPAIGN") == "full"


def times(count: int) -> int:
    """How often a drill is repeated that is repeated `count` times in CI."""
    return count * (FULL if in_full() else 1)


def left_out(items: Iterable[pytest.Item], commit: int) -> list[pytest.Item]:
    """The cases of tests marked `sampled(shares)` that are not of the commit's share: 1 in `shares` of a test's cases,
    the same for all who test the commit, and another one for the next commit."""
    unwanted = list[pytest.Item]()
    for name, cases in groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        for number, case in enumerate(cases, start=commit + crc32(name.encode())):
            marker = case.get_closest_marker("sampled")
            if marker is not None and number % marker.args[0]:
                unwanted.append(case)
    return unwanted


def this_commit() -> int:
    here = Path(__file__).parent
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
    return int(found.stdout[:8], 16)
