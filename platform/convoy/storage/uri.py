"""The kinds of stores, and which one a URI names."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from convoy.config.errors import ConfigError, PrerequisiteMissing
from convoy.storage.base import Store

if TYPE_CHECKING:
    from convoy.config.checkpoint import StoreConfig


@dataclass(frozen=True)
class StoreBackend:
    """Stores whose URIs begin alike."""

    scheme: str
    """How their URIs begin. A path without a scheme is a folder."""
    noun: str
    """For errors that list what a location can be."""
    shared: bool
    """Every machine reaches them by their URI. A folder may be on one machine, or mounted on some."""
    open: "Callable[[str, StoreConfig | None], Store]"


def _open_s3(uri: str, config: "StoreConfig | None") -> Store:
    from convoy.storage.s3 import S3Store  # boto3 takes 0.3 s to import

    return S3Store(uri, config)


def _open_gcs(uri: str, _: "StoreConfig | None") -> Store:
    check_extra(uri)
    from convoy.storage.gcs import GcsStore

    return GcsStore(uri)


def _open_folder(uri: str, _: "StoreConfig | None") -> Store:
    from convoy.storage.posix import PosixStore

    return PosixStore(uri.removeprefix(FOLDER.scheme))


FOLDER = StoreBackend("file://", "a folder", shared=False, open=_open_folder)

STORES: tuple[StoreBackend, ...] = (
    StoreBackend("s3://", "an s3:// prefix", shared=True, open=_open_s3),
    StoreBackend("gs://", "a gs:// prefix", shared=True, open=_open_gcs),
    FOLDER,
)


def store_kind(uri: str) -> StoreBackend:
    """Raises ConfigError, with the choices, for a scheme that no store has."""
    for kind in STORES:
        if uri.startswith(kind.scheme):
            return kind
    if re.match(r"[a-z][a-z0-9+.-]*://", uri):
        raise ConfigError(f"{uri}: must be {' or '.join(kind.noun for kind in STORES)}")
    return FOLDER


def open_store(uri: str, config: "StoreConfig | None" = None) -> Store:
    """The store at a URI or a local path. config: how S3 is used, None: plainly. Raises as `store_kind`, and
    PrerequisiteMissing where an extra is."""
    return store_kind(uri).open(uri, config)


def check_extra(uri: str) -> None:
    """Raises PrerequisiteMissing where the client of the store's service is not installed."""
    if not uri.startswith("gs://"):
        return
    try:
        import google.cloud.storage  # noqa: F401
    except ImportError:
        raise PrerequisiteMissing(f"{uri}: needs the extra: pip install 'metaflow-convoy[gcs]'") from None


def is_shared(uri: str) -> bool:
    """Whether every machine reaches the store by this URI."""
    return store_kind(uri).shared


def folder_path(uri: str) -> Path | None:
    """The path of a store that is a folder; None: it is another kind of store. Raises as `store_kind`."""
    return Path(uri.removeprefix(FOLDER.scheme)) if store_kind(uri) is FOLDER else None


def shared_stores() -> str:
    """What such a location can be, for errors."""
    return " or ".join(kind.noun for kind in STORES if kind.shared)
