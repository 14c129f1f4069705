"""Joining the gang: devices and process groups."""

import datetime
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from convoy.config.errors import ConfigError
from convoy.gang.task import Assignment, RankPosition
from convoy.parallel.mesh import build_mesh, data_rank_and_size

TIMEOUT = datetime.timedelta(minutes=10)

SAVE_TIMEOUT = datetime.timedelta(hours=2)
"""Of the exchanges within a save or a restore: a store that is slow on one node is not a lost peer."""

_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo/transport")


@dataclass(frozen=True)
class Ranks:
    """This rank, and the groups it talks in."""

    place: RankPosition
    device: torch.device
    mesh: DeviceMesh
    control: dist.ProcessGroup
    """gloo, on the host, over all ranks: for decisions, so that they never wait for or mix with training traffic."""
    saving: dist.ProcessGroup
    """gloo, over all ranks: for saves and restores, whose ranks may wait long for one with a slow store."""
    training_group: dist.ProcessGroup | None = None
    """All ranks, for training traffic; None: the default group."""

    @property
    def ranks_per_sample(self) -> int:
        """How many ranks compute on the same samples as this one, itself included."""
        return self.place.world_size // data_rank_and_size(self.mesh)[1]

    @property
    def across_hosts(self) -> bool:
        return self.place.host_ranks < self.place.world_size

    @property
    def first(self) -> bool:
        return self.place.rank == 0


def choose_device(place: RankPosition, gpus: int) -> torch.device:
    """This rank's own of the host's GPUs, or the CPU where it has none. Raises ConfigError if there are too few."""
    if gpus == 0:
        return torch.device("cpu")
    # Told by all ranks of the host alike: no rank waits for one that cannot come.
    if place.host_ranks > gpus:
        raise ConfigError(
            f"cluster.nproc_per_node = {place.nproc_per_node}: {place.host_ranks} ranks on this host, which has {gpus} "
            f"GPUs; use fewer cluster.nodes or ranks, or set CUDA_VISIBLE_DEVICES to nothing to train on the CPU"
        )
    return torch.device("cuda", place.host_rank)


def connect_ranks(assignment: Assignment) -> Ranks:
    """Meet all other ranks of the generation. Raises ConfigError as `choose_device` and `build_mesh`."""
    place = assignment.place
    torch.set_num_threads(place.threads)
    device = choose_device(place, torch.cuda.device_count())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    loopback = assignment.master_host.startswith("127.") or assignment.master_host == "localhost"
    if loopback:
        # The host's own name may resolve to an address that peers on it cannot use.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.TCPStore(
        assignment.master_host,
        assignment.master_port,
        place.world_size,
        is_master=place.rank == 0,
        timeout=TIMEOUT,
        master_listen_fd=assignment.listen_fd,
        wait_for_workers=False,
    )
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"generation-{assignment.generation}", store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )
    mesh = build_mesh(assignment.config.parallel, device.type, place.world_size, place.nproc_per_node)
    control = dist.new_group(backend="gloo", timeout=TIMEOUT)
    return Ranks(place, device, mesh, control, dist.new_group(backend="gloo", timeout=SAVE_TIMEOUT))


def is_lost_peer(error: BaseException) -> bool:
    """Whether a collective failed because another rank went away: a consequence, not a cause. In a pipeline's stage,
    torch reports it by an error of its own."""
    if isinstance(error, dist.DistError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    return any(sign in str(error) for sign in _LOST) or (error.__cause__ is not None and is_lost_peer(error.__cause__))
