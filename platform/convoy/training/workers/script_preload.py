"""What all ranks of a user's script are forked from.

Run as `python -m convoy.training.workers.script_preload AGENT_PID CHANNEL_FD`.

torch is imported here once, and nothing of our training: what the script finds is what `python` would have given it.
"""

import contextlib
import importlib
import os
import socket
import sys

from convoy.gang.workers.fork_server import serve
from convoy.training.workers.script import work

SOON = ("torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch._dynamo", "convoy.storage.posix")
"""What nearly every script imports; torch's last part of it as an optimizer is made, in a second."""

_process_groups: set[object] = set()
"""Those that gradients were reduced over. Kept until the worker ends."""

LATE = ("convoy.checkpoint", "convoy.storage.s3")
"""What a script may want of ours: no first start waits for it."""


class ScriptBody:
    """Workers that run a script."""

    def prepare(self) -> None:
        # As for workers that train: see training/workers/train_preload.py.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        _import(SOON)
        if "torch.nn.parallel" in sys.modules:
            _keep_process_groups()

    def prepare_more(self) -> None:
        _import(LATE)

    def run(self, assignment: bytes, listener: int | None) -> int:
        if (generator := sys.modules.get("numpy.random")) is not None:
            generator.seed()
        return work(assignment, listener)


def _import(modules: tuple[str, ...]) -> None:
    for module in modules:
        with contextlib.suppress(Exception):  # which tells the script that needs it
            importlib.import_module(module)


def _keep_process_groups() -> None:
    """Keep the process group of each DistributedDataParallel, so that it is not destroyed with the model, for instance
    when the script's `main()` returns.

    The destructor of a gloo process group joins the group's threads. When the model destroys the group, it holds
    Python's lock meanwhile, and such a thread may wait for that lock to free what the last `backward()` left with it.
    """
    from torch.nn.modules.module import register_module_module_registration_hook
    from torch.nn.parallel import DistributedDataParallel

    def keep(module: object, name: str, submodule: object) -> None:
        if isinstance(module, DistributedDataParallel):  # has its group before it has the model
            _process_groups.add(module.process_group)

    register_module_module_registration_hook(keep)


if __name__ == "__main__":
    serve(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), ScriptBody())
