"""This host, as far as launching needs to know it: its GPUs and interpreter, and whether it has what a local run needs
to read, and room for what it writes first. Imports neither torch nor metaflow.

The data package is imported only when it is needed: every task of a flow imports this module, and numpy takes its time.
"""

import errno
import getpass
import importlib.machinery
import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from convoy.config.engine import missing_package
from convoy.config.errors import ConfigError, PrerequisiteMissing
from convoy.config.model import CustomModelConfig
from convoy.config.run import RunConfig
from convoy.launch.checks.memory import check_host_memory, host_memory_mib
from convoy.storage import is_shared


def local_gpus() -> int:
    """NVIDIA GPUs that a process started here would see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([d for d in visible.split(",") if d.strip() not in ("", "-1")])
    return len([d for d in Path("/dev").glob("nvidia[0-9]*") if d.name[6:].isdigit()])


def gpu_memory_bytes() -> int | None:
    """Of the smallest of this host's GPUs, as the driver reports it; None: it does not."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout
        return min(int(line) for line in answer.splitlines()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def check_interpreter() -> None:
    """Raise ConfigError unless `python` on PATH is this interpreter: Metaflow starts local @parallel nodes with it."""
    on_path = shutil.which("python")
    here = Path(interpreter_path())
    if on_path is None or Path(on_path).absolute() != here.absolute():
        folder = here.parent
        raise ConfigError(
            f"PATH: `python` is {on_path or 'not found'}, this is {here}; activate its environment, "
            f"or run with PATH={folder}:$PATH"
        )


def interpreter_path() -> str:
    """Path of this interpreter, under the name `python` where it has that too: by which Metaflow finds it."""
    here = Path(sys.executable)
    usual = here.with_name("python")
    return str(usual if usual.exists() and usual.samefile(here) else here)


def put_python_on_path() -> None:
    """Put this interpreter's folder first on PATH, where a `python` in it is this interpreter."""
    folder, path = str(Path(sys.executable).parent), os.environ.get("PATH", "")
    if path.split(os.pathsep)[0] != folder and Path(folder, "python").exists():
        os.environ["PATH"] = f"{folder}{os.pathsep}{path}"


def set_user_name() -> None:
    """Give Metaflow a user name where it would find none: it takes `root` for none, and reads METAFLOW_USER early."""
    names = (os.environ.get(key) for key in ("METAFLOW_USER", "SUDO_USER", "USERNAME", "USER"))
    if all(name in (None, "", "root") for name in names):
        os.environ["USERNAME"] = f"{_login_name()}@{socket.gethostname()}"


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "user"


FILES_LOOKED_AT = 10_000
"""At most so many files of a corpus are tried before the run; the others when they are read."""


def check_local_prerequisites(config: RunConfig) -> None:
    """Raise ConfigError for what the run would read and cannot, for a root without room for the token shards, or for a
    host without the memory for the state."""
    if config.data.build is None:
        _check_corpus(config)
    else:
        _check_importable("data.build", config.data.build)
    if config.data.collate is not None:
        _check_importable("data.collate", config.data.collate)
    check_host_memory(config, local_gpus(), host_memory_mib())
    if config.engine.name != "convoy" and find_spec(config.engine.name) is None:
        raise PrerequisiteMissing(missing_package(config.engine.name))
    if isinstance(config.model, CustomModelConfig):
        _check_importable("model.build", config.model.build)
    elif config.model.init_from is not None:
        from convoy.model.hf_config import check_same_shape
        from convoy.model.hf_tensors import check_tensors

        folder = Path(config.model.init_from)
        check_same_shape(folder, config.model)
        check_tensors(folder, config.model)


def _check_corpus(config: RunConfig) -> None:
    from convoy.data.prepare import check_data_config

    check_data_config(config.data, config.model.vocab_size)
    _check_readable(config)
    _check_space(config)


def _check_readable(config: RunConfig) -> None:
    from convoy.data.sources import is_s3_path, iterate_files, unreadable_error

    if is_s3_path(getattr(config.data.corpus, "path", "")):
        return
    for file in itertools.islice(iterate_files(config.data.corpus), FILES_LOOKED_AT):
        if not os.access(file.location, os.R_OK):
            raise unreadable_error(file.location, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _check_space(config: RunConfig) -> None:
    """Where no data were ever prepared; else what is there may be the dataset, and preparing it shows that.

    A remote corpus is not listed only for this.
    """
    from convoy.data.local_cache import check_disk_space
    from convoy.data.manifest import DATA_PREFIX
    from convoy.data.prepare import shard_bytes_estimate
    from convoy.data.sources import is_s3_path, iterate_files

    root = Path(str(config.root)).absolute()
    remote = is_shared(str(config.root)) or is_s3_path(getattr(config.data.corpus, "path", ""))
    if remote or (root / DATA_PREFIX).exists():
        return
    corpus_bytes = sum(file.size for file in iterate_files(config.data.corpus))
    check_disk_space("root", root, shard_bytes_estimate(config.data, corpus_bytes))


def _check_importable(key: str, reference: str) -> None:
    """Look for the module's file and the function's name in it: importing it could import torch."""
    module, _, function = reference.partition(":")
    # Workers run as `python -m`, so they find modules in the working directory, not next to the flow's file.
    where: Sequence[str] | None = [str(Path.cwd()), *sys.path[1:]]
    spec = None
    for name in module.split("."):
        spec = importlib.machinery.PathFinder.find_spec(name, where)
        if spec is None:
            raise ConfigError(f"{key} = {reference}: no module named {name} on the Python path")
        where = spec.submodule_search_locations
    if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
        source = Path(spec.origin).read_text(encoding="utf-8", errors="replace")
        # By its name alone: it may be defined, assigned or imported there.
        if not re.search(rf"\b{re.escape(function)}\b", source):
            raise ConfigError(f"{key} = {reference}: no function {function} in {spec.origin}")
