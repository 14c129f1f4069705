"""A thread that tells on the node's board that Python runs in this worker, and whether it waits for other ranks.

Of ranks that stand at the same point all but one wait for that one: by this the agent tells them apart. And a node that
is slow is the one that waits less than all others.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator

from convoy.gang.workers.board import Marker

LOOK_SECONDS = 0.1
"""Between two looks; a beat that is older than `hang_detector.RECENT_SECONDS` says nothing of now."""

_COLLECTIVES = ("/torch/distributed/", "/convoy/training/exchange.py", "/convoy/training/step.py")
"""Where the main thread is while it waits for other ranks: FSDP's gathers, barriers, the per-step exchange, and the sum
of the losses."""

_CALLED = "/torch/_ops.py"
"""Between a collective that is an operator and the function that waits for it."""


@contextlib.contextmanager
def beating(marker: Marker) -> Iterator[None]:
    """Tell as long as the context lasts. To be entered in the thread that trains."""
    over, main = threading.Event(), threading.get_ident()
    thread = threading.Thread(target=_beat, args=(marker, main, over), name="beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _beat(marker: Marker, main: int, over: threading.Event) -> None:
    while True:
        marker.beat(waiting=_waits(main))
        if over.wait(LOOK_SECONDS):
            return


def _waits(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename.endswith(_CALLED):
        frame = frame.f_back
    return frame is not None and any(place in frame.f_code.co_filename for place in _COLLECTIVES)
