"""A thread that marks on the node's board that Python runs in this worker, and whether it waits for other ranks.

Of ranks at the same point all but one wait for that one: this tells the agent which. And a slow node is the one that
waits less than all others.
"""

import contextlib
import sys
import threading
from collections.abc import Collection, Iterator
from types import CodeType

from convoy.gang.workers.board import Marker

LOOK_SECONDS = 0.1
"""Between two looks; a beat that is older than `hang_detector.RECENT_SECONDS` says nothing about now."""

_COLLECTIVES = "/torch/distributed/"
"""Files in which the main thread waits for other ranks: FSDP's gathers, barriers, synchronous collectives."""

_OPERATORS = "/torch/_ops.py"
"""Between a collective that is an operator and the function that waits for it."""


@contextlib.contextmanager
def beating(marker: Marker, waits_in: Collection[CodeType] = ()) -> Iterator[None]:
    """Mark while the context lasts. Enter it in the thread that trains.

    waits_in: functions outside of torch that wait for other ranks.
    """
    over, main = threading.Event(), threading.get_ident()
    thread = threading.Thread(target=_beat, args=(marker, main, waits_in, over), name="beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _beat(marker: Marker, main: int, waits_in: Collection[CodeType], over: threading.Event) -> None:
    while True:
        marker.beat(waiting=is_waiting(main, waits_in))
        if over.wait(LOOK_SECONDS):
            return


def is_waiting(thread: int, waits_in: Collection[CodeType]) -> bool:
    """Whether a thread waits for other ranks now."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename.endswith(_OPERATORS):
        frame = frame.f_back
    return frame is not None and (frame.f_code in waits_in or _COLLECTIVES in frame.f_code.co_filename)
