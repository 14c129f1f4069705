"""From a URI to its store."""

from typing import TYPE_CHECKING

from convoy.storage.base import Store

if TYPE_CHECKING:
    from convoy.config.checkpoint import StoreConfig


def open_store(uri: str, config: "StoreConfig | None" = None) -> Store:
    """The store for a local path, a `file://` URI or `s3://bucket/prefix`. config: how S3 is used, None: plainly."""
    if uri.startswith("s3://"):
        from convoy.storage.s3 import S3Store  # boto3 takes 0.3 s to import

        return S3Store(uri, config)
    from convoy.storage.posix import PosixStore

    return PosixStore(uri.removeprefix("file://"))
