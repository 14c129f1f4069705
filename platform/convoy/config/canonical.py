"""One text for equal values, so that a hash of it tells them apart from others."""

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def short_hash(value: Any) -> str:
    """First 16 hex digits of the SHA-256 of that text."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]
