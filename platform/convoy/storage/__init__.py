"""Named objects under one URI, on a POSIX path or on S3. Imports neither torch nor metaflow."""

from convoy.storage.base import Appender, ObjectMissing, Store, StoreUnavailable
from convoy.storage.uri import open_store

__all__ = ["Appender", "ObjectMissing", "Store", "StoreUnavailable", "open_store"]
