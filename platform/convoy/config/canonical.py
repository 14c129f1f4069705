"""One text for equal values, so that a hash of it tells them apart from others."""

import json
from typing import Any


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
