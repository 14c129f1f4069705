"""Python, packages, storage, memory, GPUs: what a machine needs to run jobs at all."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from convoy.config.errors import ConfigError
from convoy.doctor.diagnosis import Diagnosis
from convoy.storage import StoreUnavailable, StoreUnfit, open_store

DEADLINE_SECONDS = 2.5
"""Longest time one check may take."""
GIB = 2**30


def check_python(environ: Mapping[str, str]) -> Diagnosis:
    """Metaflow's local @parallel starts its other tasks with `python` from PATH, not with the running interpreter."""
    name = "python on PATH"
    executable = shutil.which("python", path=environ.get("PATH", ""))
    fix = f'put this environment first: export PATH="{Path(sys.prefix) / "bin"}:$PATH"'
    if executable is None:
        return Diagnosis(name, "problem", "none", fix)
    prefix = _command_output([executable, "-c", "import sys; print(sys.prefix)"], environ)
    if prefix is None or Path(prefix).resolve() != Path(sys.prefix).resolve():
        return Diagnosis(name, "problem", f"{executable}, which is not the running interpreter, {sys.executable}", fix)
    return Diagnosis(name, "ok", f"{executable}, Python {sys.version.split()[0]}")


def check_packages() -> Diagnosis:
    """Installed versions of what this package requires, extras apart."""
    needed = [Requirement(line) for line in requires("metaflow-convoy") or []]
    plain = [requirement for requirement in needed if requirement.marker is None or requirement.marker.evaluate()]
    unmet = [f"{r} (found {_installed_version(r.name) or 'none'})" for r in plain if not _is_met(r)]
    if unmet:
        return Diagnosis("packages", "problem", f"not met: {', '.join(unmet)}", "pip install metaflow-convoy")
    main = (f"{name} {_installed_version(name)}" for name in ("metaflow-convoy", "metaflow", "torch"))
    return Diagnosis("packages", "ok", ", ".join(main))


def check_extension(environ: Mapping[str, str]) -> Diagnosis:
    """Whether Metaflow, started afresh, finds the card type that comes with Convoy."""
    name = "Metaflow extension"
    program = "from metaflow.plugins import CARDS; print('cards', *[card.type for card in CARDS])"
    output = _command_output([sys.executable, "-c", program], environ)
    cards = re.search(r"^cards\b(.*)$", output or "", re.MULTILINE)
    if cards is None:
        fix = f'see what this says: {sys.executable} -c "import metaflow"'
        return Diagnosis(name, "problem", f"Metaflow does not start within {DEADLINE_SECONDS} s", fix)
    if "convoy_card" not in cards[1].split():
        return Diagnosis(
            name, "problem", "Metaflow does not list the card type convoy_card", "pip install metaflow-convoy"
        )
    return Diagnosis(name, "ok", "Metaflow lists the card type convoy_card")


def check_root_folder(root: str) -> Diagnosis:
    """Whether jobs can be written below a folder, and how much room there is."""
    folder = Path(root.removeprefix("file://")).absolute()
    existing = next(path for path in (folder, *folder.parents) if os.access(path, os.F_OK))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Diagnosis(
            "root", "problem", f"{folder}: {existing} cannot be written", "set CONVOY_ROOT or root: elsewhere"
        )
    free = shutil.disk_usage(existing).free
    room = f"{folder}: {free / GIB:.1f} GiB free"
    if free < 2 * GIB:
        return Diagnosis("root", "warning", room, "checkpoints need room: free some, or set CONVOY_ROOT elsewhere")
    return Diagnosis("root", "ok", room)


def check_root_bucket(root: str) -> Diagnosis:
    """Whether objects can be created in a bucket, and only once: commits depend on it."""
    from convoy.gang.async_call import BackgroundCall

    fix = "check AWS credentials, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL and the bucket's policy"
    if root.startswith("gs://"):
        fix = "check Google's application default credentials, and that their account may write objects in the bucket"
    try:
        BackgroundCall(root, lambda: open_store(root).prove(), DEADLINE_SECONDS).result()
    except (StoreUnavailable, StoreUnfit, ConfigError) as error:
        return Diagnosis("root", "problem", str(error), fix)
    return Diagnosis("root", "ok", f"{root}: creates objects once")


def check_shared_memory(folder: Path) -> Diagnosis:
    """/dev/shm, through which ranks on one machine exchange data; a container's default is 64 MiB."""
    if not folder.is_dir():
        return Diagnosis("shared memory", "warning", f"no {folder}", "mount a tmpfs there")
    size = shutil.disk_usage(folder).total
    room = f"{folder}: {size / GIB:.2f} GiB"
    if size < GIB:
        return Diagnosis("shared memory", "warning", room, "docker run --shm-size=8g, or cluster.shared_memory_mib")
    return Diagnosis("shared memory", "ok", room)


def check_gpus(environ: Mapping[str, str]) -> Diagnosis:
    """NVIDIA GPUs, and whether the installed torch can use them."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    if shutil.which(query[0], path=environ.get("PATH", "")) is None:
        return Diagnosis("GPU", "note", "no nvidia-smi: training runs on the CPU")
    output = _command_output(query, environ)
    if not output:
        return Diagnosis(
            "GPU", "problem", "nvidia-smi is here and fails", "see what nvidia-smi says; is the driver loaded?"
        )
    devices = "; ".join(line.strip() for line in output.splitlines())
    torch = _installed_version("torch") or "none"
    if torch.endswith("+cpu"):
        return Diagnosis("GPU", "problem", f"{devices}; torch {torch} cannot use it", "install a CUDA build of torch")
    return Diagnosis("GPU", "ok", devices)


def check_notices(environ: Mapping[str, str], sysfs: Path) -> Diagnosis:
    """Whether anything announces that this machine will be reclaimed."""
    from convoy.gang.notices.sources import describe_statuses, poll_machine_sources

    statuses = poll_machine_sources(environ, sysfs, DEADLINE_SECONDS)
    if any(status.answers for status in statuses):
        return Diagnosis("notices", "ok", describe_statuses(statuses))
    fix = "without one, Convoy learns that a machine was reclaimed only once it is gone" if statuses else ""
    return Diagnosis("notices", "warning" if statuses else "note", describe_statuses(statuses), fix)


def _command_output(command: list[str], environ: Mapping[str, str]) -> str | None:
    """What a command prints; None if it cannot be started, fails, or takes too long."""
    try:
        done = subprocess.run(command, env=dict(environ), capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _is_met(requirement: Requirement) -> bool:
    installed = _installed_version(requirement.name)
    return installed is not None and requirement.specifier.contains(installed, prereleases=True)


def _installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
