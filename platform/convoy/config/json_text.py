"""JSON that a user or a store wrote."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The value that `text` holds. Raises ValueError for text that is not JSON, or is nested deeper than Python can
    follow."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
