"""How much a slow family of tests tries: a bounded sample in CI, the full count with CONVOY_CAMPAIGN=full."""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from hypothesis import settings

FULL = 10
"""Times as many examples as in CI."""


def examples(count: int) -> settings:
    """Settings of a property test that tries `count` examples in CI."""
    return settings(max_examples=times(count), deadline=None)


def in_full() -> bool:
    """The full counts are asked for."""
    return os.environ.get("CONVOY_CAMPAIGN") == "full"


def times(count: int) -> int:
    """How often a drill is repeated that is repeated `count` times in CI."""
    return count * (FULL if in_full() else 1)


def share(cases: Iterable[str], shares: int) -> list[str]:
    """Each case in the full counts; else one share of them, which the commit chooses: the same for all who test it, and
    another one for the next commit."""
    ordered = sorted(cases)
    return ordered if in_full() else ordered[_commit() % shares :: shares]


def _commit() -> int:
    here = Path(__file__).parent
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
    return int(found.stdout[:8], 16)
