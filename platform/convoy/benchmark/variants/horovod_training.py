"""Horovod: Convoy's torch model and AdamW, with gradients averaged by Horovod's ring-allreduce over gloo.

Its hooks start to reduce a gradient as soon as backward has made it; what is left of that after backward is the part of
synchronisation.
"""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import horovod.torch as hvd
import torch
import torch.distributed as dist
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer
from torch import nn

from convoy.benchmark.variants.framework import FrameworkBatch, Part, find_free_address
from convoy.config.run import RunConfig
from convoy.model.loss import IGNORE
from convoy.training.build import build_whole_model
from convoy.training.optimizer import adamw, set_learning_rate
from convoy.training.process_groups import Ranks

_SLOT = ("rank", "local_rank", "cross_rank", "size", "local_size", "cross_size")


@cache
def _server() -> RendezvousServer:
    return RendezvousServer(verbose=0)  # its thread ends with the process


def connect_processes(ranks: Ranks) -> None:
    """Make this rank's process one of Horovod's, once: rank 0 runs the service that `horovodrun` would. ranks: all of
    the gang; all call it alike."""
    if hvd.is_initialized():
        return
    hosts: list[str] = [""] * ranks.place.world_size
    dist.all_gather_object(hosts, find_free_address().partition(":")[0], group=ranks.control)
    port = [0]
    names = ",".join(f"{host}:{hosts.count(host)}" for host in dict.fromkeys(hosts))
    slots = get_host_assignments(parse_hosts(names), len(hosts), len(hosts))
    if ranks.first:
        port = [_server().start()]
        _server().init(slots)
    dist.broadcast_object_list(port, group=ranks.control, group_src=0)
    own = slots[ranks.place.rank]
    os.environ |= {f"HOROVOD_{name.upper()}": str(getattr(own, name)) for name in _SLOT}
    os.environ |= {
        "HOROVOD_HOSTNAME": own.hostname,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": hosts[0],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port[0]),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    if own.hostname.startswith("127."):
        os.environ["HOROVOD_GLOO_IFACE"] = "lo"
    hvd.init()


class HorovodTraining:
    """Weights and moments are on every rank."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        """ranks: those that train together: all processes of Horovod, or this one alone."""
        self._model = build_whole_model(config, ranks)
        self.parameters = sum(p.numel() for p in self._model.parameters())
        self.values: dict[str, float] = {}
        self._ranks, self._clip_norm = ranks.place.world_size, config.train.clip_norm
        self._optimizer: Any = adamw(self._model, config.optimizer)
        if self._ranks > 1:
            self._optimizer = hvd.DistributedOptimizer(self._optimizer, self._model.named_parameters())

    def step(self, batch: FrameworkBatch, lr: float) -> tuple[float, int]:
        return self.step_in_parts(batch, lr, lambda _: None)

    def step_in_parts(self, batch: FrameworkBatch, lr: float, end_part: Callable[[Part], None]) -> tuple[float, int]:
        tokens_bs, targets_bs = torch.from_numpy(batch.tokens_bs).long(), torch.from_numpy(batch.targets_bs).long()
        targets_bs = targets_bs.where(torch.from_numpy(batch.counts_bs) > 0, IGNORE)
        end_part("data")
        loss: torch.Tensor = self._model(tokens_bs, targets_bs, None)
        end_part("forward")
        count = self._sum(torch.tensor(float(batch.counts_bs.sum())))
        (loss * (self._ranks / count)).backward()
        end_part("backward")
        total = self._sum(loss.detach())
        if self._ranks > 1:
            self._optimizer.synchronize()
        end_part("sync")
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_norm, foreach=True)
        set_learning_rate(self._optimizer, lr)
        if self._ranks > 1:
            with self._optimizer.skip_synchronize():
                self._optimizer.step()
        else:
            self._optimizer.step()
        self._optimizer.zero_grad()
        end_part("optimizer")
        return float(total) / float(count), round(float(count))

    def _sum(self, value: torch.Tensor) -> torch.Tensor:
        return hvd.allreduce(value, op=hvd.Sum) if self._ranks > 1 else value
