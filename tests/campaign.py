"""How many examples a property test tries: a bounded sample in CI, the full count with CONVOY_CAMPAIGN=full."""

import os

from hypothesis import settings

FULL = 10
"""Times as many examples as in CI."""


def examples(count: int) -> settings:
    """Settings of a property test that tries `count` examples in CI."""
    times = FULL if os.environ.get("CONVOY_CAMPAIGN") == "full" else 1
    return settings(max_examples=count * times, deadline=None)
