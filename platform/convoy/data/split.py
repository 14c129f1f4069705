"""Which files, or which documents of a single file, are held out for validation."""

import hashlib
from collections.abc import Sequence

from convoy.config.errors import ConfigError


def held_out(names: Sequence[str], fraction: float) -> set[str]:
    """The held-out ones of `names`: those whose keyed hash falls below `fraction` of its range.

    Depends on the name alone, so that a growing corpus never moves a file from one side to the other; but at least
    one name is on each side. Raises ConfigError for fewer than two names.
    """
    if len(names) < 2:
        raise ConfigError(
            f"data.validation_fraction = {fraction}: the corpus has only {len(names)} document, and each split needs"
            " at least one; give more files, or JSON lines"
        )
    places = sorted((_place(name), name) for name in names)
    chosen = {name for place, name in places if place < fraction}
    if not chosen:
        return {places[0][1]}
    return chosen if len(chosen) < len(places) else chosen - {places[-1][1]}


def _place(name: str) -> float:
    """From 0 to 1, evenly spread over names."""
    digest = hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8, person=b"validation").digest()
    return int.from_bytes(digest, "little") / 2**64
