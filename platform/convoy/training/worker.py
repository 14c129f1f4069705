"""Entry point of a rank: `python -m convoy.training.worker`, its assignment on standard input."""

import ctypes
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from convoy.config.errors import ConfigError
from convoy.events.types import PEER_LOST
from convoy.gang.assignment import EXPECTED, STOPPED, Assignment
from convoy.storage import StoreUnavailable

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Train, and tell by the exit code how it ended."""
    began = time.perf_counter()
    _die_with_parent()
    assignment = Assignment.model_validate_json(sys.stdin.buffer.read())
    if os.getppid() != assignment.agent_pid:  # it died before the kernel knew that we go with it
        return EXPECTED
    # Imported only now: whatever goes wrong from here on can be told to the agent.
    try:
        from convoy.training.run import run_rank

        stopped = run_rank(assignment, began)
    except ImportError as error:
        return _fault(error, Path(assignment.reason_path))
    except Exception as error:
        return _tell(error, Path(assignment.reason_path))
    return STOPPED if stopped else 0


def _tell(error: Exception, reason: Path) -> int:
    """Leave one line for the agent; a traceback is for bugs only."""
    from convoy.checkpoint.errors import CheckpointError
    from convoy.data.local import DataDamaged
    from convoy.training.loop import TrainingFailedError
    from convoy.training.ranks import lost_peer
    from convoy.training.saver import SupersededError

    plain = ConfigError | TrainingFailedError | SupersededError | DataDamaged | CheckpointError
    if not isinstance(error, plain | StoreUnavailable):
        return _fault(error, reason, PEER_LOST if lost_peer(error) else 1)
    outage = isinstance(error, StoreUnavailable)
    line = f"the store is out of reach: {_first_line(error)}" if outage else _first_line(error)
    reason.write_text(line)
    print(line, file=sys.stderr)
    return EXPECTED


def _fault(error: Exception, reason: Path, code: int = 1) -> int:
    reason.write_text(f"{type(error).__name__}: {_first_line(error)}")
    traceback.print_exception(error)
    return code


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def _die_with_parent() -> None:
    """Have the kernel kill this process when its agent dies, so that no worker outlives it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Peers may be gone, and then interpreter shutdown waits for process groups that cannot close.
    os._exit(code)
