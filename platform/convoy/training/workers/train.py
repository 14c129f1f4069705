"""A rank, from its assignment to its exit code."""

import sys
import time
import traceback
from pathlib import Path

from convoy.config.errors import ConfigError
from convoy.gang.task import EXPECTED, STOPPED, Assignment
from convoy.job.events.types import OUTAGE, PEER_LOST, UNFIT
from convoy.storage import StoreUnavailable
from convoy.training.workers.reason import first_line, leave_reason, named


def work(text: bytes, listen_fd: int | None, broken: Exception | None = None) -> int:
    """Train, and tell by the exit code how it ended.

    text: the Assignment as JSON. listen_fd: what its listening socket is here. broken: why training cannot be imported.
    """
    began = time.perf_counter()
    assignment = Assignment.model_validate_json(text).model_copy(update={"listen_fd": listen_fd})
    reason = Path(assignment.reason_path)
    if broken is not None:
        return _fault(broken, reason)
    from convoy.training.rank import run_rank

    try:
        stopped = run_rank(assignment, began)
    except ImportError as error:  # as it comes, for what tells the others apart may need the same
        return _fault(error, reason)
    except Exception as error:
        return _tell(error, reason)
    return STOPPED if stopped else 0


def _tell(error: Exception, reason: Path) -> int:
    """Leave one line for the agent; a traceback is for bugs only."""
    from convoy.checkpoint.errors import CheckpointError
    from convoy.data.manifest import DataDamaged
    from convoy.training.checkpointing.saver import SupersededError
    from convoy.training.loop import LastSaveFailedError, TrainingFailedError
    from convoy.training.measure.health_check import NodeUnfitError
    from convoy.training.process_groups import lost_peer

    if isinstance(error, NodeUnfitError):
        leave_reason(reason, str(error))
        print(error, file=sys.stderr)
        return UNFIT
    plain = ConfigError | TrainingFailedError | SupersededError | DataDamaged | CheckpointError
    if not isinstance(error, plain | StoreUnavailable):
        return _fault(error, reason, PEER_LOST if lost_peer(error) else 1)
    outage = isinstance(error, StoreUnavailable)
    line = f"the store is out of reach: {first_line(error)}" if outage else first_line(error)
    leave_reason(reason, line)
    print(line, file=sys.stderr)
    return OUTAGE if outage or isinstance(error, LastSaveFailedError) else EXPECTED


def _fault(error: Exception, reason: Path, code: int = 1) -> int:
    leave_reason(reason, named(error))
    traceback.print_exception(error)
    return code
