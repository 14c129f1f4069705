"""How many examples a property test tries: a bounded sample in CI, the full count with CONVOY_CAMPAIGN=full."""

import os

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
