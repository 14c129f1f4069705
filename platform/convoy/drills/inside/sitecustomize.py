"""Has the workers of a drill's gang carry out orders; see `convoy/drills/gang.py`. Python imports it as it starts, in
every process that has this folder on its path: it does nothing but where workers are forked from."""

import ctypes
import gc
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

ORDERS = "CONVOY_DRILL_ORDERS"
SIGNAL = signal.SIGRTMIN + 7
HEADROOM_BYTES = 256 * 2**20
CRAWL_SECONDS = 0.06
"""Of a core that a crawling worker wastes, after each CRAWL_EVERY_SECONDS."""
CRAWL_EVERY_SECONDS = 0.02


class DrilledError(RuntimeError):
    """The error of a worker that was made to fail."""


def carry_out_order(*_: object) -> None:
    """Do what the file of this process says. Runs in the main thread, between two instructions of the training."""
    folder, pid = Path(os.environ[ORDERS]), os.getpid()
    what = (folder / str(pid)).read_text()
    print(f"drill: {what}", flush=True)
    answer = folder / f"{pid}.answer"
    new = answer.with_suffix(".new")
    new.write_text(repr(time.time()))
    new.rename(answer)
    match what:
        case "hang":
            hang()
        case "fail":
            raise DrilledError("an error in the training, as the drill has it")
        case "exit":
            os._exit(0)
        case "allocate":
            allocate_past_limit()
        case "poison":
            poison_weights()
        case "crawl":
            signal.signal(signal.SIGALRM, waste_core)
            waste_core()


def hang() -> NoReturn:
    """In C, with the interpreter's lock: no other thread of the process runs Python any more."""
    while True:
        ctypes.PyDLL(None).sleep(3600)


def allocate_past_limit() -> NoReturn:
    """With this process limited to little more memory than it has. Raises MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + HEADROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    taken = []
    while True:
        taken.append(bytearray(2**24))


def poison_weights() -> None:
    """A number of each of this rank's shards of the weights is none any more, as by a bad device."""
    torch: Any = sys.modules["torch"]
    for candidate in gc.get_objects():
        if torch.optim.Optimizer not in type(candidate).__mro__:
            continue
        for weight in (p for group in candidate.param_groups for p in group["params"]):
            shard = getattr(weight.data, "_local_tensor", weight.data).detach()
            if shard.numel():
                shard.view(-1)[0] = float("nan")


def waste_core(*_: object) -> None:
    """Waste a core, again and again."""
    until = time.thread_time() + CRAWL_SECONDS
    while time.thread_time() < until:
        pass
    signal.setitimer(signal.ITIMER_REAL, CRAWL_EVERY_SECONDS)


if ORDERS in os.environ and "convoy.training.workers.train" in sys.orig_argv:
    signal.signal(SIGNAL, carry_out_order)
