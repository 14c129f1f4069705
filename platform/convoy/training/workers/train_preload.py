"""What all ranks of a node are forked from: `python -m convoy.training.workers.train_preload AGENT_PID CHANNEL_FD`.

torch and all of training are imported here once, so that no worker does: not at the start, and not after a failure.
"""

import contextlib
import importlib
import os
import socket
import sys

from convoy.gang.workers.fork_server import serve
from convoy.training.workers.train import work

SOON = ("torch._dynamo", "convoy.storage.posix")
"""What every worker comes to import before its first step; torch's part of it as an optimizer is made, in a second."""

LATE = (
    "convoy.checkpoint.save.post_commit",
    "convoy.checkpoint.save.engine",
    "convoy.checkpoint.restore.load",
    "convoy.checkpoint.state.tensors",
    "convoy.storage.s3",
    "convoy.training.checkpointing.save_events",
    "tokenizers",
)
"""What a worker imports when it needs it: no first start waits until it is imported here; later ones find it done."""


class TrainingBody:
    """Workers that train."""

    def __init__(self) -> None:
        self._failed: Exception | None = None

    def prepare(self) -> None:
        # Read when numpy is imported, which would make threads. torch's are made when they are first needed.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # Whoever asks for GPUs while it is imported is to ask the management library: the runtime survives no fork.
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        try:
            importlib.import_module("convoy.training.rank")
        except Exception as error:
            self._failed = error
        self._import(SOON)

    def prepare_more(self) -> None:
        self._import(LATE)

    def _import(self, modules: tuple[str, ...]) -> None:
        for module in modules if self._failed is None else ():
            with contextlib.suppress(Exception):  # which tells the worker that needs it
                importlib.import_module(module)

    def run(self, assignment: bytes, listener: int | None) -> int:
        if (generator := sys.modules.get("numpy.random")) is not None:
            generator.seed()  # or all ranks would draw the same; Python's own does so by itself
        return work(assignment, listener, self._failed)


if __name__ == "__main__":
    serve(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), TrainingBody())
