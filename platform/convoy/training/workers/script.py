"""What all ranks of a user's script are forked from, and a rank that runs a script, from its assignment to its exit
code.

Run as `python -m convoy.training.workers.script AGENT_PID CHANNEL_FD`.

torch is imported here once, and nothing of our training: the script finds what `python` would have given it, and in its
environment what torchrun would have. Source: torch 2.13, "Environment Variables" in `torch/distributed/run.py`, and
`local_elastic_agent.py` below `torch/distributed/elastic/agent/server`.
"""

import atexit
import contextlib
import datetime
import gc
import importlib.machinery
import io
import os
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

from convoy import script as script_interface
from convoy.gang.task import EXPECTED, RESERVED, STOPPED, Assignment, RankPosition, Script
from convoy.gang.workers.fork_server import serve
from convoy.gang.workers.processes import set_process_name, signal_at_end_of_parent
from convoy.gang.workers.script_channel import ScriptChannel
from convoy.gang.workers.worker import error_line, first_line, write_reason
from convoy.job.events.registry import PEER_LOST
from convoy.network.nccl.proof import NetworkRequirementError, NetworkWatch, OwnProof
from convoy.training.workers.train import configure_imports, import_quietly, seed_numpy

SOON = ("torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch._dynamo", "convoy.storage.posix")
"""What nearly every script imports; torch imports the last part when an optimizer is made, in a second."""

_process_groups: set[object] = set()
"""Those that gradients were reduced over. They live until the worker ends."""

LATE = ("convoy.checkpoint", "convoy.storage.s3")
"""Modules of ours that a script may use: no first start waits for them."""


class ScriptBody:
    """Workers that run a script."""

    def import_modules(self) -> None:
        configure_imports()
        import_quietly(SOON)
        if "torch.nn.parallel" in sys.modules:
            _keep_ddp_process_groups()

    def import_late_modules(self) -> None:
        import_quietly(LATE)

    def run(self, assignment: bytes, listener: int | None) -> int:
        seed_numpy()
        return run_assignment(assignment, listener)


def _keep_ddp_process_groups() -> None:
    """Keep the process group of each DistributedDataParallel, so that it is not destroyed with the model, for instance
    when the script's `main()` returns.

    The destructor of a gloo process group joins the group's threads. When the model destroys the group, it holds
    Python's lock meanwhile, and such a thread may wait for that lock to free what the last `backward()` left with it.
    """
    from torch.nn.modules.module import register_module_module_registration_hook
    from torch.nn.parallel import DistributedDataParallel

    def keep_ddp_group(module: object, name: str, submodule: object) -> None:
        if isinstance(module, DistributedDataParallel):  # has its group before it has the model
            _process_groups.add(module.process_group)

    register_module_module_registration_hook(keep_ddp_group)


_last_errors: list[BaseException] = []
"""What ended the script. It holds the frames of its functions, whose objects must not be destroyed."""

STORE_TIMEOUT = datetime.timedelta(minutes=10)


def run_assignment(assignment_json: bytes, listener: int | None) -> int:
    """Run the script; the exit code says how it ended. assignment_json: the Assignment as JSON. listener: the socket
    that is bound to MASTER_PORT, on rank 0.

    The board says when the script's last line has run, and with which code. From then on it is for the node's agent to
    end a process that hangs (`gang/workers/exit_progress.py`): a thread in here could not, where another one keeps
    Python's lock. Nothing that the script holds is destroyed, as docs/explanation/gang.md explains, so that the caller
    must end the process by `os._exit`.
    """
    began, rank = time.perf_counter(), os.getpid()
    assignment = Assignment.model_validate_json(assignment_json)
    script, reason_path = assignment.script, Path(assignment.reason_path)
    assert script is not None
    if listener is not None:
        _fork_tcp_store(assignment, listener)
    devices = visible_devices(os.environ)
    os.environ.update(script_environment(assignment, devices))
    if assignment.master_host.startswith("127.") or assignment.master_host == "localhost":
        # The host's own name may resolve to an address that peers on it cannot use.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    channel = ScriptChannel(assignment, began, _network_proof(assignment) if devices else None)
    script_interface.attach(channel)
    code = _run_script(script, reason_path)
    if code == 0 and channel.ends_for_notice:
        code = STOPPED
    if os.getpid() == rank:  # a process that the script forked comes here too, and is not the rank
        channel.marker.set_exit_code(code)
    _finish_as_interpreter()
    channel.close()
    return code


def _network_proof(assignment: Assignment) -> OwnProof | None:
    """Have NCCL log what it uses, before the script can use it; None: nothing crosses hosts."""
    place = assignment.place
    if place.host_ranks == place.world_size:
        return None
    return OwnProof(place.rank, assignment.config.cluster.require_network, NetworkWatch.begin())


def _run_file(path: str, main: ModuleType) -> None:
    main.__file__, main.__loader__ = path, importlib.machinery.SourceFileLoader("__main__", path)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    exec(code, main.__dict__)


def _run_script(script: Script, reason_path: Path) -> int:
    """As `python FILE` or `python -m MODULE` would, in this process."""
    sys.argv = [script.entrypoint, *script.args]
    main = sys.modules["__main__"] = ModuleType("__main__")  # to the end: threads and exit handlers look into it
    try:
        if script.is_file:
            if not sys.flags.safe_path:
                sys.path[0] = str(Path(script.entrypoint).parent)  # which was the working directory, by `-m`
            _run_file(script.entrypoint, main)
        else:
            runpy._run_module_as_main(script.entrypoint)  # type: ignore[attr-defined]  # as the interpreter does
    except SystemExit as error:
        _last_errors.append(error)
        return _report_exit(error, reason_path)
    except BaseException as error:
        # As the interpreter does: `Checkpoints` asks for it.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        return _report_error(error, reason_path)
    return 0


def _report_exit(error: SystemExit, reason_path: Path) -> int:
    """As the interpreter takes it, but for the codes that are ours."""
    if error.code is None:
        return 0
    if not isinstance(error.code, int):
        with contextlib.suppress(Exception):  # it may be anything, which may not be printed
            print(error.code, file=sys.stderr)
        write_reason(reason_path, first_line(error.code))
        return 1
    code = error.code & 0xFF
    if code not in RESERVED:
        return code
    write_reason(reason_path, f"sys.exit({code})")
    return 1


def _report_error(error: BaseException, reason_path: Path) -> int:
    if isinstance(error, NetworkRequirementError):  # the same in each attempt on these machines
        write_reason(reason_path, str(error))
        print(error, file=sys.stderr)
        return EXPECTED
    write_reason(reason_path, error_line(error))
    text = "".join(traceback.format_exception(type(error), error, _script_frames(error.__traceback__)))
    sys.stderr.write(text.encode(errors="backslashreplace").decode())
    return PEER_LOST if _is_lost_peer(error) else 1


def _script_frames(frames: TracebackType | None) -> TracebackType | None:
    """Without what ran it."""
    while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        frames = frames.tb_next
    return frames


def _is_lost_peer(error: BaseException) -> bool:
    """Whether another rank was gone. A script that never imported torch has no ranks."""
    if "torch.distributed" not in sys.modules:
        return False
    from convoy.training.process_groups import is_lost_peer

    return is_lost_peer(error)


def _finish_as_interpreter() -> None:
    """What the interpreter does at its end and `os._exit` does not: wait for threads, run what was registered, write
    what files hold in memory. Of the rest of the interpreter's work nothing is guaranteed to a script, and torch's
    process groups hang or abort in it."""
    files = _find_open_files()
    gc.freeze()  # nor are they to be destroyed as garbage
    for finishing in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):  # neither changes the exit code, as under `python`
            finishing()
    for file in (*files, *_find_open_files()):
        with contextlib.suppress(Exception):
            file.flush()


def _find_open_files() -> list[io.IOBase]:
    """All files that the script has open, or forgot to close."""
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    return [file for file in gc.get_objects() if issubclass(type(file), kinds)]


def _fork_tcp_store(assignment: Assignment, listener: int) -> None:
    """Have the rendezvous' store in a process of its own, as under torchrun: it outlives rank 0, until the generation
    ends. Forked twice, so that the script has no child that it knows nothing of."""
    child = os.fork()
    if child == 0:
        parent = os.getpid()
        if os.fork() == 0:
            _serve_tcp_store(assignment, listener, parent)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(listener)


def _serve_tcp_store(assignment: Assignment, listener: int, parent: int) -> NoReturn:
    try:
        set_process_name("convoy store")
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


def script_environment(assignment: Assignment, devices: Sequence[str]) -> dict[str, str]:
    """Of one rank. devices: the GPUs that its node's process may use, as CUDA_VISIBLE_DEVICES names them."""
    place = assignment.place
    variables: dict[str, object] = {
        "RANK": place.rank,
        "WORLD_SIZE": place.world_size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.nproc_per_node,
        "GROUP_RANK": place.node,
        "GROUP_WORLD_SIZE": place.nodes,
        "ROLE_NAME": "default",
        "ROLE_RANK": place.rank,
        "ROLE_WORLD_SIZE": place.world_size,
        "MASTER_ADDR": assignment.master_host,
        "MASTER_PORT": assignment.master_port,
        "TORCHELASTIC_RUN_ID": assignment.job,
        "TORCHELASTIC_RESTART_COUNT": assignment.generation - 1,
        # Nothing counts them: a gang restarts until the same failure occurs three times at the same step.
        "TORCHELASTIC_MAX_RESTARTS": 2**31 - 1,
        # Rank 0 would bind the port itself otherwise, which any other process may have taken by then.
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    share = _node_devices(place, devices)
    if share:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(share)
    return {name: str(value) for name, value in variables.items()}


def visible_devices(environment: Mapping[str, str], folder: Path = Path("/dev")) -> list[str]:
    """NVIDIA GPUs that a process sees, as CUDA_VISIBLE_DEVICES names them. folder: with the devices' files."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [word.strip() for word in named.split(",") if word.strip() not in ("", "-1")]
    numbers = (file.name.removeprefix("nvidia") for file in folder.glob("nvidia[0-9]*"))
    return sorted((number for number in numbers if number.isdigit()), key=int)


def _node_devices(place: RankPosition, devices: Sequence[str]) -> Sequence[str]:
    """Of a host that several nodes share, those that are this node's own: scripts take the LOCAL_RANK-th of them."""
    if place.host_ranks == place.nproc_per_node:
        return ()
    first = place.host_rank - place.local_rank
    return devices[first : first + place.nproc_per_node]


if __name__ == "__main__":
    serve(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), ScriptBody())
