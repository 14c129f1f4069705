"""A rank that runs a user's script, from its assignment to its exit code."""

import atexit
import contextlib
import datetime
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from convoy import script as told
from convoy.events.types import OUTAGE, PEER_LOST, UNFIT
from convoy.gang.assignment import EXPECTED, STOPPED, Assignment, Script
from convoy.gang.prctl import set_name, signal_at_end_of_parent
from convoy.gang.script_environment import script_environment, visible_devices
from convoy.gang.script_link import ScriptLink

OURS = (EXPECTED, STOPPED, PEER_LOST, OUTAGE, UNFIT)
"""Exit codes that tell an agent more than that a worker failed. Those of a script do not."""

FAILED_SECONDS = 35.0
"""After a failure: what a script has to do at its end may take so long. A `Checkpoints` takes up to 30 s."""

STORE_TIMEOUT = datetime.timedelta(minutes=10)


def work(text: bytes, listener: int | None) -> int:
    """Run the script, and tell by the exit code how it ended. text: the Assignment as JSON. listener: the socket that
    is bound to MASTER_PORT, on rank 0."""
    began = time.perf_counter()
    assignment = Assignment.model_validate_json(text)
    script, reason = assignment.script, Path(assignment.reason_path)
    assert script is not None
    if listener is not None:
        _host_store(assignment, listener)
    _set_environment(assignment)
    link = ScriptLink(assignment, began)
    told.attach(link)
    code = _run(script, reason)
    if code != 0:
        _end_after(FAILED_SECONDS, code)
    elif link.ends_for_notice:
        code = STOPPED
    _finish()
    link.close()
    return code


def _set_environment(assignment: Assignment) -> None:
    os.environ.update(script_environment(assignment, visible_devices(os.environ)))
    if assignment.master_host.startswith("127.") or assignment.master_host == "localhost":
        # The host's own name may resolve to an address that peers on it cannot use.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _run(script: Script, reason: Path) -> int:
    """As `python FILE` or `python -m MODULE` would, in this process."""
    sys.argv = [script.entrypoint, *script.args]
    try:
        if script.is_file:
            if not sys.flags.safe_path:
                sys.path[0] = str(Path(script.entrypoint).parent)  # which was the working directory, by `-m`
            runpy.run_path(script.entrypoint, run_name="__main__")
        else:
            runpy.run_module(script.entrypoint, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        return _exit(error, reason)
    except BaseException as error:
        return _fault(error, reason)
    return 0


def _exit(error: SystemExit, reason: Path) -> int:
    """As the interpreter takes it, but for the codes that are ours."""
    if error.code is None:
        return 0
    if not isinstance(error.code, int):
        print(error.code, file=sys.stderr)
        reason.write_text(_first_line(str(error.code)))
        return 1
    code = error.code & 0xFF
    if code not in OURS:
        return code
    reason.write_text(f"sys.exit({code})")
    return 1


def _fault(error: BaseException, reason: Path) -> int:
    reason.write_text(f"{type(error).__name__}: {_first_line(str(error))}")
    traceback.print_exception(type(error), error, _of_script(error.__traceback__))
    return PEER_LOST if _lost_peer(error) else 1


def _of_script(frames: TracebackType | None) -> TracebackType | None:
    """Without what ran it."""
    while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        frames = frames.tb_next
    return frames


def _lost_peer(error: BaseException) -> bool:
    """Whether another rank was gone. A script that never imported torch has no ranks."""
    if "torch.distributed" not in sys.modules:
        return False
    from convoy.training.ranks import lost_peer

    return lost_peer(error)


def _finish() -> None:
    """What the interpreter does at its end and `os._exit` does not: wait for threads, run what was registered."""
    for finishing in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            finishing()


def _end_after(seconds: float, code: int) -> None:
    """The others wait in vain for a rank that failed: it may not hang as it ends."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()


def _host_store(assignment: Assignment, listener: int) -> None:
    """Have the rendezvous' store in a process of its own, as under torchrun: it outlives rank 0, until the generation
    ends. Forked twice, so that the script has no child that it knows nothing of."""
    child = os.fork()
    if child == 0:
        parent = os.getpid()
        if os.fork() == 0:
            _be_the_store(assignment, listener, parent)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(listener)


def _be_the_store(assignment: Assignment, listener: int, parent: int) -> NoReturn:
    try:
        set_name("convoy store")
        while os.getppid() == parent:  # until the process that forks workers has adopted this one
            time.sleep(0.001)
        signal_at_end_of_parent(signal.SIGKILL)
        from torch.distributed import TCPStore

        store = TCPStore(
            assignment.master_host,
            assignment.master_port,
            assignment.place.world_size,
            is_master=True,
            timeout=STORE_TIMEOUT,
            master_listen_fd=listener,
            wait_for_workers=False,
        )
        while store is not None:
            signal.pause()
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")
