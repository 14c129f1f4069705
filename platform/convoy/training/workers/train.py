"""What all ranks of a node are forked from: `python -m convoy.training.workers.train AGENT_PID CHANNEL_FD`; and a rank,
from its assignment to its exit code.

torch and all of training are imported here once, so that no worker imports them: not at the start, and not after a
failure.
"""

import contextlib
import importlib
import os
import socket
import sys
import time
import traceback
from pathlib import Path

from convoy.config.errors import ConfigError
from convoy.gang.task import EXPECTED, STOPPED, Assignment
from convoy.gang.workers.fork_server import serve
from convoy.gang.workers.worker import error_line, first_line, write_reason
from convoy.job.events.registry import OUTAGE, PEER_LOST, UNFIT
from convoy.storage import StoreUnavailable

SOON = ("torch._dynamo", "convoy.storage.posix")
"""What every worker imports before its first step; torch imports its part when an optimizer is made, in a second."""

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

    def import_modules(self) -> None:
        configure_imports()
        try:
            importlib.import_module("convoy.training.rank")
        except Exception as error:
            self._failed = error
        import_quietly(SOON if self._failed is None else ())

    def import_late_modules(self) -> None:
        import_quietly(LATE if self._failed is None else ())

    def run(self, assignment: bytes, listener: int | None) -> int:
        seed_numpy()
        return run_assignment(assignment, listener, self._failed)


def configure_imports() -> None:
    """Set what modules read when they are imported, before any worker is forked."""
    # numpy would make threads. torch's are made when they are first needed.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Modules that look for GPUs when they are imported must use the management library: the runtime survives no fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def import_quietly(modules: tuple[str, ...]) -> None:
    for module in modules:
        with contextlib.suppress(Exception):  # the worker that needs it will raise the error
            importlib.import_module(module)


def seed_numpy() -> None:
    """In a worker: or all would draw the same numbers; Python's own generator seeds itself."""
    if (generator := sys.modules.get("numpy.random")) is not None:
        generator.seed()


def run_assignment(assignment_json: bytes, listen_fd: int | None, import_failure: Exception | None = None) -> int:
    """Train; the exit code says how it ended.

    assignment_json: the Assignment as JSON. listen_fd: the descriptor of its listening socket here.
    import_failure: why training cannot be imported.
    """
    began = time.perf_counter()
    assignment = Assignment.model_validate_json(assignment_json).model_copy(update={"listen_fd": listen_fd})
    reason_path = Path(assignment.reason_path)
    if import_failure is not None:
        return _report_traceback(import_failure, reason_path)
    from convoy.training.rank import run_rank

    try:
        stopped = run_rank(assignment, began)
    except ImportError as error:  # before all others, since distinguishing those may need the same import
        return _report_traceback(error, reason_path)
    except Exception as error:
        return _report_failure(error, reason_path)
    return STOPPED if stopped else 0


def _report_failure(error: Exception, reason_path: Path) -> int:
    """Leave one line for the agent; a traceback is for bugs only."""
    from convoy.checkpoint.errors import CheckpointError
    from convoy.data.manifest import DataDamaged
    from convoy.training.checkpointing.saver import SupersededError
    from convoy.training.loop import LastSaveFailedError, TrainingFailedError
    from convoy.training.measure.health_check import NodeUnfitError
    from convoy.training.process_groups import is_lost_peer

    if isinstance(error, NodeUnfitError):
        write_reason(reason_path, str(error))
        print(error, file=sys.stderr)
        return UNFIT
    plain = ConfigError | TrainingFailedError | SupersededError | DataDamaged | CheckpointError
    if not isinstance(error, plain | StoreUnavailable):
        return _report_traceback(error, reason_path, PEER_LOST if is_lost_peer(error) else 1)
    outage = isinstance(error, StoreUnavailable)
    line = f"the store is out of reach: {first_line(error)}" if outage else first_line(error)
    write_reason(reason_path, line)
    print(line, file=sys.stderr)
    return OUTAGE if outage or isinstance(error, LastSaveFailedError) else EXPECTED


def _report_traceback(error: Exception, reason_path: Path, code: int = 1) -> int:
    write_reason(reason_path, error_line(error))
    traceback.print_exception(error)
    return code


if __name__ == "__main__":
    serve(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), TrainingBody())
