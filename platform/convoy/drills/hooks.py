"""How a drill has a worker do something in its own process: a file says what, a signal says now.

The process that workers are forked from finds `inside/sitecustomize.py` on its path, which has it heed that signal.
Nothing of it is in the training's own code, and workers of a gang without hooks are what they are in earnest.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Literal

from convoy.gang.workers.processes import state_of

Order = Literal["hang", "fail", "exit", "allocate", "poison", "crawl"]
"""hang: hold the interpreter's lock for ever. fail: raise an error. exit: end with success. allocate: take memory until
there is none. poison: a weight becomes NaN. crawl: every step takes several times as long from now on."""

ORDERS = "CONVOY_DRILL_ORDERS"
"""Environment variable: the folder where orders are found and answered."""

_ANSWER_SECONDS = 30.0


class Orders:
    """Of one trial."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "orders"

    def environment(self) -> dict[str, str]:
        """Of processes whose workers are to heed orders."""
        self._folder.mkdir(exist_ok=True)
        path = [str(Path(__file__).with_name("inside")), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {ORDERS: str(self._folder), "PYTHONPATH": os.pathsep.join(path)}

    def give(self, pid: int, what: Order) -> float:
        """Wall time at which the process began to do it. Raises TimeoutError if it does not, and ProcessLookupError if
        it ends before."""
        order, answer = self._folder / str(pid), self._folder / f"{pid}.answer"
        order.write_text(what)
        os.kill(pid, signal.SIGRTMIN + 7)  # named here: a laptop that only plans drills may not have it
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not answer.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {pid} did not heed the order to {what}")
            if state_of(pid) == "gone" and not answer.exists():
                raise ProcessLookupError(f"process {pid} ended before it heeded the order to {what}")
            time.sleep(0.005)
        began: float = json.loads(answer.read_text())
        answer.unlink()
        return began
