"""What a user's script finds in its environment: what torchrun would have given it.

Source: torch 2.13, "Environment Variables" in `torch/distributed/run.py`, and `local_elastic_agent.py` below
`torch/distributed/elastic/agent/server`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from convoy.gang.task import Assignment, Place


def script_environment(assignment: Assignment, devices: Sequence[str]) -> dict[str, str]:
    """Of one rank. devices: the GPUs that its node's process may use, as CUDA_VISIBLE_DEVICES names them."""
    place = assignment.place
    found = {
        "RANK": place.rank,
        "WORLD_SIZE": place.world_size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.nproc_per_node,
        "GROUP_RANK": place.node,
        "GROUP_WORLD_SIZE": place.nodes,
        "ROLE_NAME": "default",
        "ROLE_RANK": place.rank,
        "ROLE_WORLD_SIZE": place.world_size,
        "MASTER_ADDR": assignment.master_host,
        "MASTER_PORT": assignment.master_port,
        "TORCHELASTIC_RUN_ID": assignment.job,
        "TORCHELASTIC_RESTART_COUNT": assignment.generation - 1,
        # Nothing counts them: a gang goes on until the same failure comes three times at the same step.
        "TORCHELASTIC_MAX_RESTARTS": 2**31 - 1,
        # Rank 0 would bind the port itself otherwise, which any other process may have taken by then.
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    share = _share(place, devices)
    if share:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(share)
    return {name: str(value) for name, value in found.items()}


def visible_devices(environment: Mapping[str, str], folder: Path = Path("/dev")) -> list[str]:
    """NVIDIA GPUs that a process sees, as CUDA_VISIBLE_DEVICES names them. folder: with the devices' files."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [word.strip() for word in named.split(",") if word.strip() not in ("", "-1")]
    numbers = (file.name.removeprefix("nvidia") for file in folder.glob("nvidia[0-9]*"))
    return sorted((number for number in numbers if number.isdigit()), key=int)


def _share(place: Place, devices: Sequence[str]) -> Sequence[str]:
    """Of a host that several nodes share, those that are this node's own: scripts take the LOCAL_RANK-th of them."""
    if place.host_ranks == place.nproc_per_node:
        return ()
    first = place.host_rank - place.local_rank
    return devices[first : first + place.nproc_per_node]
