"""The place of a rank from the variables of its launcher."""

import pytest

from convoy.config.errors import ConfigError
from convoy.network.launchers import PORT, LaunchedPlace, first_host, launched_place

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}  # fmt: skip
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
SRUN = {
    "SLURM_PROCID": "6", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "0", "SLURM_NODEID": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_STEP_NODELIST": "p5-[003-005,011]", "SLURM_NTASKS": "7",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (TORCHRUN, LaunchedPlace("torchrun", 5, 8, 1, 4, "10.0.0.1", 29400)),
        (OPEN_MPI, LaunchedPlace("mpirun of Open MPI", 3, 4, 3, 4, "127.0.0.1", PORT)),
        (MPICH, LaunchedPlace("mpirun of MPICH", 0, 2, 0, 2, "127.0.0.1", PORT)),
        (SRUN, LaunchedPlace("srun", 6, 7, 0, 1, "p5-003", PORT)),
        ({**SRUN, "PMI_RANK": "6", "PMI_SIZE": "7"}, LaunchedPlace("srun", 6, 7, 0, 1, "p5-003", PORT)),
        ({**SRUN, "MASTER_ADDR": "head"}, LaunchedPlace("srun", 6, 7, 0, 1, "head", PORT)),
        ({}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # the script of sbatch, of which there is one
    ],
)
def test_each_launchers_variables_name_the_place(environ: dict[str, str], place: LaunchedPlace | None) -> None:
    assert launched_place(environ) == place


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({**TORCHRUN, "LOCAL_RANK": ""}, "LOCAL_RANK = : must be a number, as torchrun sets it"),
        ({**TORCHRUN, "RANK": "8"}, "RANK = 8, WORLD_SIZE = 8"),
        ({**TORCHRUN, "MASTER_PORT": "x"}, "MASTER_PORT = x: must be a number"),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "8"},
            "MASTER_ADDR = not set: must be the address of rank 0's host, for ranks of mpirun of Open MPI",
        ),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "many"}, "SLURM_STEP_TASKS_PER_NODE = many: must be a number"),
    ],
)
def test_wrong_variables_are_one_line(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        launched_place(environ)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("a", "a"), ("a,b", "a"), ("n[1-3]", "n1"), ("n[07,09]-gpu,z", "n07-gpu"), ("p5-[003-005]", "p5-003")],
)
def test_the_first_of_slurms_hosts(hosts: str, first: str) -> None:
    assert first_host(hosts) == first
