"""What all ranks of a user's script are forked from: `python -m convoy.training.script_warm AGENT_PID CHANNEL_FD`.

torch is imported here once, and nothing of our training: what the script finds is what `python` would have given it.
"""

import contextlib
import importlib
import os
import socket
import sys

from convoy.gang.fork_server import serve
from convoy.training.script_worker import work

SOON = ("torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch._dynamo", "convoy.storage.posix")
"""What nearly every script imports; torch's last part of it as an optimizer is made, in a second."""

LATE = ("convoy.checkpoint", "convoy.storage.s3")
"""What a script may want of ours: no first start waits for it."""


class ScriptBody:
    """Workers that run a script."""

    def prepare(self) -> None:
        # As for workers that train: see training/warm.py.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        _import(SOON)

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


if __name__ == "__main__":
    serve(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), ScriptBody())
