"""JSON that a user or a store wrote."""

import hashlib
import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The value that `text` holds. Raises ValueError for text that is not JSON, or is nested deeper than Python can
    follow."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def short_hash(value: Any) -> str:
    """First 16 hex digits of the SHA-256 of that text."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]
