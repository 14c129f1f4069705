"""Opening a dataset on a node."""

import multiprocessing
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from convoy.config.data import DataConfig
from convoy.config.errors import ConfigError
from convoy.data import local_cache as local_module
from convoy.data.local_cache import cache_folder, ensure_local_data
from convoy.data.manifest import DataDamaged, PreparedData
from convoy.data.prepare import prepare_dataset
from convoy.storage import Store, open_store


def _config(cache: Path) -> DataConfig:
    corpus = {"kind": "synthetic", "tokens": 5000}
    return DataConfig.model_validate({"corpus": corpus, "sequence_length": 32, "cache": str(cache)})


@pytest.fixture(params=["s3", "gcs"])
def remote(request: pytest.FixtureRequest) -> Store:
    return open_store(str(request.getfixturevalue(f"{request.param}_uri")))


def test_a_local_dataset_is_used_in_place(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    manifest = prepare_dataset(_config(tmp_path / "cache"), store)
    folder = ensure_local_data(manifest, store, _config(tmp_path / "cache"))
    assert folder == tmp_path / "root" / manifest.prefix
    assert not (tmp_path / "cache").exists()


def test_a_missing_local_shard_is_named(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    manifest = prepare_dataset(_config(tmp_path), store)
    shard = tmp_path / manifest.prefix / "train-00000.bin"
    shard.write_bytes(b"xx")
    with pytest.raises(DataDamaged, match=rf"^{shard}: 2 bytes long, should have 9500 bytes"):
        ensure_local_data(manifest, store, _config(tmp_path))
    shard.unlink()
    with pytest.raises(DataDamaged, match=rf"^{shard}: missing"):
        ensure_local_data(manifest, store, _config(tmp_path))


def test_a_remote_dataset_is_copied_once(tmp_path: Path, remote: Store) -> None:
    config = _config(tmp_path)
    manifest = prepare_dataset(config, remote)
    folder = ensure_local_data(manifest, remote, config)
    assert sorted(path.name for path in folder.iterdir()) == sorted(file.name for file in manifest.files)
    assert (folder / "train-00000.bin").read_bytes() == remote.read(f"{manifest.prefix}train-00000.bin")
    for file in manifest.files:
        remote.delete(manifest.prefix + file.name)
    assert ensure_local_data(manifest, remote, config) == folder


def test_a_cut_or_deleted_copy_is_fetched_again(tmp_path: Path, remote: Store) -> None:
    config = _config(tmp_path)
    manifest = prepare_dataset(config, remote)
    shard = ensure_local_data(manifest, remote, config) / "train-00000.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:100])
    ensure_local_data(manifest, remote, config)
    assert shard.read_bytes() == whole
    shutil.rmtree(shard.parent)
    ensure_local_data(manifest, remote, config)
    assert shard.read_bytes() == whole


def test_a_damaged_remote_shard_is_refused_and_leaves_no_copy(tmp_path: Path, remote: Store) -> None:
    config = _config(tmp_path)
    manifest = prepare_dataset(config, remote)
    name = f"{manifest.prefix}train-00000.bin"
    content = bytearray(remote.read(name))
    content[1234] ^= 1
    remote.write(name, bytes(content))
    with pytest.raises(DataDamaged, match=r"train-00000\.bin: 9500 bytes that are not what the manifest names"):
        ensure_local_data(manifest, remote, config)
    assert not list(tmp_path.rglob("train-*"))
    assert not list(tmp_path.rglob(".tmp-*"))


def _open(manifest: PreparedData, uri: str, config: DataConfig, found: "multiprocessing.Queue[int]") -> None:
    folder = ensure_local_data(manifest, open_store(uri), config)
    found.put(int(np.fromfile(folder / "train-00000.bin", dtype="<u2").sum()))


def test_several_processes_of_a_host_may_copy_at_once(tmp_path: Path, remote: Store) -> None:
    config = _config(tmp_path)
    manifest = prepare_dataset(config, remote)
    spawn = multiprocessing.get_context("spawn")
    found: multiprocessing.Queue[int] = spawn.Queue()
    processes = [spawn.Process(target=_open, args=(manifest, remote.uri, config, found)) for _ in range(2)]
    for process in processes:
        process.start()
    sums = {found.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert len(sums) == 1
    assert not list(tmp_path.rglob(".tmp-*"))


def test_no_space_in_the_cache_is_said_before_copying(
    tmp_path: Path, remote: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(tmp_path / "cache")
    manifest = prepare_dataset(config, remote)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(local_module.shutil, "disk_usage", lambda _: usage(1, 1, 1))
    with pytest.raises(ConfigError, match=rf"^data.cache = {tmp_path}/cache: no space for the token shards"):
        ensure_local_data(manifest, remote, config)
    assert not (tmp_path / "cache").exists()


def test_the_cache_is_where_the_user_said_or_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder(DataConfig()) == Path("/home/someone/.cache/convoy")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert cache_folder(DataConfig()) == Path("/var/cache/convoy")
    assert cache_folder(DataConfig(cache="~/mine")) == Path("/home/someone/mine")
