"""The place of this process among ranks that torchrun, srun or mpirun started, from environment variables. Pure."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from convoy.config.errors import ConfigError

PORT = 29533
"""Port on which rank 0 listens, unless MASTER_PORT names another."""


class LaunchedPlace(NamedTuple):
    """A rank's place, and the address and port at which it meets the others."""

    launcher: str
    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    address: str
    port: int


class _Launcher(NamedTuple):
    """The names of a launcher's variables."""

    name: str
    rank: str
    ranks: str
    local_rank: str
    local_ranks: str
    also: tuple[str, ...] = ()
    """Further variables that distinguish the launcher from others with the same names."""


_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _Launcher(
        "mpirun of Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Launcher("mpirun of MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("MPI_LOCALRANKID",)),
    # Only a step of srun has the last: the script of sbatch, of which there is one, has SLURM_PROCID and SLURM_NTASKS.
    _Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)


def launched_place(environ: Mapping[str, str]) -> LaunchedPlace | None:
    """The place that a launcher's variables name; None: none of them started this process.

    Raises ConfigError if variables are missing or wrong, or if the ranks have no address at which to meet.
    """
    for launcher in _LAUNCHERS:
        # srun sets PMI_RANK and PMI_SIZE too, where its own variables are the complete ones.
        if all(name in environ for name in (launcher.rank, launcher.ranks, *launcher.also)):
            return _read_place(launcher, environ)
    return None


def _read_place(launcher: _Launcher, environ: Mapping[str, str]) -> LaunchedPlace:
    local = environ.get(launcher.local_ranks, "")
    if launcher.name == "srun":
        local = _tasks_of_node(local, environ.get("SLURM_NODEID", "0"))
    values = {name: environ.get(name, "") for name in (launcher.rank, launcher.ranks, launcher.local_rank)}
    values[launcher.local_ranks] = local
    for name, value in values.items():
        if not value.isdecimal():
            raise ConfigError(f"{name} = {environ.get(name, 'not set')}: must be a number, as {launcher.name} sets it")
    rank, ranks, local_rank, local_ranks = (int(value) for value in values.values())
    if not (rank < ranks and local_rank < local_ranks <= ranks):
        of = ", ".join(f"{name} = {value}" for name, value in values.items())
        raise ConfigError(f"{of}: must be the place of one of the ranks that {launcher.name} started")
    port = environ.get("MASTER_PORT", str(PORT))
    if not port.isdecimal():
        raise ConfigError(f"MASTER_PORT = {port}: must be a number")
    address = environ.get("MASTER_ADDR") or _address(launcher, environ, ranks, local_ranks)
    return LaunchedPlace(launcher.name, rank, ranks, local_rank, local_ranks, address, int(port))


def _address(launcher: _Launcher, environ: Mapping[str, str], ranks: int, local_ranks: int) -> str:
    """The address of rank 0 if MASTER_ADDR is not set. Raises ConfigError if it cannot be derived."""
    if launcher.name == "srun" and environ.get("SLURM_STEP_NODELIST"):
        return first_host(environ["SLURM_STEP_NODELIST"])
    if ranks == local_ranks:
        return "127.0.0.1"
    raise ConfigError(f"MASTER_ADDR = not set: must be the address of rank 0's host, for ranks of {launcher.name}")


def _tasks_of_node(counts: str, node: str) -> str:
    """Number of tasks of a node, as text; empty: not listed. counts: Slurm's list, `2(x3),1` for 2, 2, 2 and 1."""
    every: list[str] = []
    for part in counts.split(","):
        if match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part):
            every += [match[1]] * int(match[2] or 1)
    return every[int(node)] if node.isdecimal() and int(node) < len(every) else ""


def first_host(hosts: str) -> str:
    """The first host of a Slurm host list: `node001` of `node[001-004,007],other`."""
    match = re.match(r"([^,\[]*)(?:\[([^\]\-,]+)[^\]]*\]([^,]*))?", hosts)
    assert match is not None
    return "".join(part or "" for part in match.groups())
