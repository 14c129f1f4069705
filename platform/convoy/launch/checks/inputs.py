"""Whether this host has what a local run needs to read, and room for what it writes first.

The data room is imported when it is asked: every task of a flow imports this module, and numpy takes its time.
"""

import errno
import importlib.machinery
import itertools
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from convoy.config.errors import ConfigError
from convoy.config.model import CustomModelConfig
from convoy.config.run import RunConfig
from convoy.launch.checks.host import local_gpus
from convoy.launch.checks.memory import check_host, host_memory_mib

FILES_LOOKED_AT = 10_000
"""At most so many files of a corpus are tried before the run; the others when they are read."""


def check_inputs(config: RunConfig) -> None:
    """Raise ConfigError for what the run would read and cannot, for a root without room for the token shards, or for a
    host without the memory for the state."""
    from convoy.data.prepare import precheck

    precheck(config.data, config.model.vocab_size)
    _check_readable(config)
    _check_space(config)
    check_host(config, local_gpus(), host_memory_mib())
    if isinstance(config.model, CustomModelConfig):
        _check_importable(config.model)
    elif config.model.init_from is not None:
        from convoy.model.hf_config import check_same_shape
        from convoy.model.hf_files import check_tensors

        folder = Path(config.model.init_from)
        check_same_shape(folder, config.model)
        check_tensors(folder, config.model)


def _check_readable(config: RunConfig) -> None:
    from convoy.data.sources import is_remote, iterate_files, unreadable

    if is_remote(getattr(config.data.corpus, "path", "")):
        return
    for file in itertools.islice(iterate_files(config.data.corpus), FILES_LOOKED_AT):
        if not os.access(file.location, os.R_OK):
            raise unreadable(file.location, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _check_space(config: RunConfig) -> None:
    """Where no data were ever prepared; else what is there may be the dataset, and preparing it shows that.

    A remote corpus is not listed only for this.
    """
    from convoy.data.manifest import DATA_PREFIX
    from convoy.data.prepare import shard_bytes_estimate
    from convoy.data.sources import is_remote, iterate_files

    root = Path(str(config.root)).absolute()
    remote = is_remote(str(config.root)) or is_remote(getattr(config.data.corpus, "path", ""))
    if remote or (root / DATA_PREFIX).exists():
        return
    needed = shard_bytes_estimate(config.data, sum(file.size for file in iterate_files(config.data.corpus)))
    free = shutil.disk_usage(existing_folder(root)).free
    if needed > free:
        raise ConfigError(
            f"root = {root}: no space for the token shards: they take about {needed / 1e9:.2f} GB, "
            f"{free / 1e9:.2f} GB are free"
        )


def existing_folder(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(there for there in (folder, *folder.parents) if there.exists())


def _check_importable(model: CustomModelConfig) -> None:
    """Look for the module's file and the function's name in it: importing it could import torch."""
    module, _, function = model.build.partition(":")
    # Workers run as `python -m`, so they find modules in the working directory, not next to the flow's file.
    where: Sequence[str] | None = [str(Path.cwd()), *sys.path[1:]]
    spec = None
    for name in module.split("."):
        spec = importlib.machinery.PathFinder.find_spec(name, where)
        if spec is None:
            raise ConfigError(f"model.build = {model.build}: no module named {name} on the Python path")
        where = spec.submodule_search_locations
    if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
        source = Path(spec.origin).read_text(encoding="utf-8", errors="replace")
        # By its name alone: it may be defined, assigned or imported there.
        if not re.search(rf"\b{re.escape(function)}\b", source):
            raise ConfigError(f"model.build = {model.build}: no function {function} in {spec.origin}")
