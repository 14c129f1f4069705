"""Entry point of a rank: `python -m convoy.training.worker`, its assignment on standard input."""

import ctypes
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from convoy.config.errors import ConfigError
from convoy.gang.assignment import EXPECTED, PEER_LOST, Assignment

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Train, and tell by the exit code how it ended."""
    began = time.perf_counter()
    _die_with_parent()
    assignment = Assignment.model_validate_json(sys.stdin.buffer.read())
    # Imported only now: whatever goes wrong from here on can be told to the agent.
    try:
        from convoy.training.run import run_rank

        run_rank(assignment, began)
    except Exception as error:
        return _tell(error, Path(assignment.reason_path))
    return 0


def _tell(error: Exception, reason: Path) -> int:
    """Leave one line for the agent; what a user can mend gets no traceback."""
    from convoy.training.loop import TrainingFailedError
    from convoy.training.ranks import lost_peer

    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, ConfigError | TrainingFailedError):
        reason.write_text(lines[0])
        print(lines[0], file=sys.stderr)
        return EXPECTED
    reason.write_text(f"{type(error).__name__}: {lines[0]}")
    traceback.print_exc()
    return PEER_LOST if lost_peer(error) else 1


def _die_with_parent() -> None:
    """Have the kernel kill this process when its agent dies, so that no worker outlives it."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel knew
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Peers may be gone, and then interpreter shutdown waits for process groups that cannot close.
    os._exit(code)
