"""Named objects under one URI, on a POSIX path or on S3. Imports neither torch nor metaflow."""

from convoy.storage.base import ObjectInfo, ObjectMissing, Store, StoreUnavailable, StoreUnfit
from convoy.storage.uri import folder_path, is_shared, open_store

__all__ = [
    "ObjectInfo",
    "ObjectMissing",
    "Store",
    "StoreUnavailable",
    "StoreUnfit",
    "folder_path",
    "is_shared",
    "open_store",
]
