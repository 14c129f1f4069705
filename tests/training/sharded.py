"""Sharded models in a group of one rank, in the test's own process."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

from convoy.config.run import RunConfig
from convoy.model.build import build_model
from convoy.model.init import initialise_weights
from convoy.model.transformer import Transformer
from convoy.parallel.fsdp import parallelize
from convoy.parallel.mesh import build_mesh

F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def group_of_one() -> Iterator[None]:
    gc.freeze()  # what there is already: to look through all of it takes half a second
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
        gc.collect()  # meshes and groups hold each other: later tests fork, and may not inherit them
        gc.unfreeze()


def alone(test: F) -> F:
    """Run a test as the only rank of a process group."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with group_of_one():
            test(*args, **kwargs)

    return cast(F, run)


def sharded_model(config: RunConfig, *, materialise: bool = True, across_hosts: bool = False) -> nn.Module:
    """The configuration's model over the default group, with weights unless it is to stay on meta."""
    model = build_model(config.model, config.train.loss_chunk_tokens, seed=config.train.seed)
    mesh = build_mesh(config.parallel, "cpu", dist.get_world_size(), dist.get_world_size())
    parallelize(model, mesh, config.parallel, config.train, across_hosts=across_hosts)
    if materialise and isinstance(model, Transformer):
        model.to_empty(device=torch.device("cpu"))
        initialise_weights(model, config.train.seed)
    return model
