"""This host, as far as launching needs to know it. Imports neither torch nor metaflow."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from convoy.config.errors import ConfigError


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
    here = Path(sys.executable)
    if on_path is None or Path(on_path).absolute() != here.absolute():
        folder = here.parent
        raise ConfigError(
            f"PATH: `python` is {on_path or 'not found'}, this is {here}; activate its environment, "
            f"or run with PATH={folder}:$PATH"
        )


def this_interpreter() -> str:
    """Path of this interpreter, under the name `python` where it has that too: by which Metaflow finds it."""
    here = Path(sys.executable)
    usual = here.with_name("python")
    return str(usual if usual.exists() and usual.samefile(here) else here)


def use_this_interpreter() -> None:
    """Put this interpreter's folder first on PATH, where a `python` in it is this interpreter."""
    folder, path = str(Path(sys.executable).parent), os.environ.get("PATH", "")
    if path.split(os.pathsep)[0] != folder and Path(folder, "python").exists():
        os.environ["PATH"] = f"{folder}{os.pathsep}{path}"


def name_user() -> None:
    """Give Metaflow a user name where it would find none: it takes `root` for none, and reads METAFLOW_USER early."""
    names = (os.environ.get(key) for key in ("METAFLOW_USER", "SUDO_USER", "USERNAME", "USER"))
    if all(name in (None, "", "root") for name in names):
        os.environ["USERNAME"] = f"{_login()}@{socket.gethostname()}"


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "user"
