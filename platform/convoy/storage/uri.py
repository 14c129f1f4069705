"""From a URI to its store."""

from convoy.storage.base import Store


def open_store(uri: str) -> Store:
    """The store for a local path, a `file://` URI or `s3://bucket/prefix`."""
    if uri.startswith("s3://"):
        from convoy.storage.s3 import S3Store  # boto3 takes 0.3 s to import

        return S3Store(uri)
    from convoy.storage.posix import PosixStore

    return PosixStore(uri.removeprefix("file://"))
