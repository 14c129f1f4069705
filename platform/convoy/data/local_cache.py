"""A dataset's files on this machine: in place on a shared file system, else copied once from the store."""

import os
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from convoy.config.data import DataConfig
from convoy.config.errors import ConfigError
from convoy.data.dataset_writer import content_digest
from convoy.data.manifest import TOKEN_BYTES_FILE, TOKENIZER_FILE, DataDamaged, DataFile, PreparedData
from convoy.data.tokenizer import TextTokenizer, load_tokenizer
from convoy.storage import Store, is_shared
from convoy.storage.posix_files import as_outages, refuse_links_out

_THREADS = 4
_READS = 2


def ensure_local_data(manifest: PreparedData, store: Store, config: DataConfig) -> Path:
    """The folder with the dataset's files. Several processes of one host may do so at once.

    Raises DataDamaged, StoreUnavailable, and ConfigError if the cache has no space.
    """
    if not is_shared(store.uri):
        folder = Path(store.uri) / manifest.prefix
        with as_outages():
            for file in manifest.files:
                refuse_links_out(Path(store.uri), manifest.prefix + file.name)
        _refuse_damaged_files(folder, manifest)
        return folder
    folder = cache_folder(config) / f"{manifest.id}-{manifest.attempt}"
    missing = [file for file in manifest.files if _file_size(folder / file.name) != file.size]
    if missing:
        check_disk_space("data.cache", folder.parent, sum(file.size for file in missing))
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda file: _download(store, manifest.prefix, file, folder), missing))
    return folder


def open_tokenizer(manifest: PreparedData, folder: Path) -> TextTokenizer | None:
    """The dataset's tokenizer; None where its tokens have no text."""
    if manifest.eos_token is None:
        return None
    path = folder / TOKENIZER_FILE
    return load_tokenizer(path.read_text(encoding="utf-8"), manifest.eos_token, str(path))


def open_token_bytes(manifest: PreparedData, folder: Path) -> npt.NDArray[np.uint32] | None:
    """[vocab_size] UTF-8 bytes of each id, 0 for special tokens; None where that is not known exactly."""
    if all(file.name != TOKEN_BYTES_FILE for file in manifest.files):
        return None
    counts: npt.NDArray[np.uint32] = np.load(folder / TOKEN_BYTES_FILE)
    return counts


def cache_folder(config: DataConfig) -> Path:
    """`data.cache`, else `convoy` in $XDG_CACHE_HOME or ~/.cache."""
    if config.cache is not None:
        return Path(config.cache).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "convoy"


def _download(store: Store, prefix: str, file: DataFile, folder: Path) -> None:
    data = b""
    for _ in range(_READS):  # a second read distinguishes damage in the store from damage on the way
        data = store.read(prefix + file.name)
        if content_digest(data) == file.digest:
            break
    else:
        raise DataDamaged(f"{store.uri}/{prefix}{file.name}: {len(data)} bytes that are not what the manifest names")
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".tmp-{uuid.uuid4().hex}"
    try:
        temporary.write_bytes(data)
        temporary.rename(folder / file.name)
    finally:
        temporary.unlink(missing_ok=True)


def _refuse_damaged_files(folder: Path, manifest: PreparedData) -> None:
    for file in manifest.files:
        size = _file_size(folder / file.name)
        if size != file.size:
            length = "missing" if size is None else f"{size} bytes long"
            raise DataDamaged(f"{folder / file.name}: {length}, should have {file.size} bytes; delete {folder.parent}")


def check_disk_space(config_key: str, folder: Path, needed_bytes: int) -> None:
    """Raise ConfigError if the file system of a folder, which need not exist yet, lacks room for the token shards.

    config_key: of the configuration, which names the folder.
    """
    free = shutil.disk_usage(next(there for there in (folder, *folder.parents) if there.exists())).free
    if needed_bytes > free:
        raise ConfigError(
            f"{config_key} = {folder}: no space for the token shards: they take about {needed_bytes / 1e9:.2f} GB, "
            f"{free / 1e9:.2f} GB are free"
        )


def _file_size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
