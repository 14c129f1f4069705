"""The check that a store keeps the one promise commits stand on."""

import uuid
from typing import TYPE_CHECKING

from convoy.storage.base import StoreUnfit

if TYPE_CHECKING:
    from convoy.storage.base import Store


def prove(store: "Store") -> None:
    """Create an object twice: the second time must be refused and change nothing. Raises StoreUnfit."""
    name = f"proofs/{uuid.uuid4().hex}"
    try:
        if not store.create(name, b"first"):
            raise StoreUnfit(f"{store.uri}: says that an object exists which nobody has made")
        if store.create(name, b"second"):
            raise StoreUnfit(f"{store.uri}: replaces an object that was to be created only if absent")
        if (read := store.read(name)) != b"first":
            raise StoreUnfit(f"{store.uri}: an object that was just created reads as {read!r}")
    finally:
        store.delete(name)
