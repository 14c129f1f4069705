"""Workers without torch, for tests of how they are forked: `python -m tests.gang.light AGENT_PID CHANNEL_FD`.

What one does is the `job` of its assignment.
"""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from convoy.config.run import RunConfig
from convoy.gang.task import Assignment, RankPosition
from convoy.gang.workers.fork_server import serve
from convoy.gang.workers.processes import TAG


def assignment(job: str, folder: Path, rank: int = 0, listen_fd: int | None = None, **config: Any) -> Assignment:
    """For a worker that does `job`."""
    return Assignment(
        config=RunConfig(**config),
        job=job,
        job_uri=str(folder),
        root=str(folder),
        data_id="",
        fingerprint="",
        generation=1,
        parent=None,
        place=RankPosition(
            rank=rank, local_rank=rank, node=0, nodes=1, nproc_per_node=9, host_rank=rank, host_ranks=9, threads=1
        ),
        master_host="",
        master_port=0,
        listen_fd=listen_fd,
        reason_path=str(folder / f"{rank}.reason"),
    )


class Light:
    """A process to fork from that may fail as the environment has it."""

    def import_modules(self) -> None:
        match os.environ.get("LIGHT_PREPARE"):
            case "fails":
                sys.exit("no such library")
            case "is slow":
                time.sleep(600)
            case "cannot fork":
                os.fork = _no_more_processes

    def import_late_modules(self) -> None:
        pass

    def run(self, assignment: bytes, listener: int | None) -> int:
        told = Assignment.model_validate_json(assignment)
        what, _, which = told.job.partition(" ")
        match what:
            case "return":
                return int(which)
            case "exit":
                sys.exit(int(which) if which.isdecimal() else which or None)
            case "raise":
                raise KeyError(which)
            case "sleep":
                print("here", flush=True)
            case "tell":
                print(json.dumps(_what_it_is(told)), flush=True)
                return 0
            case "greet":
                assert listener is not None
                with socket.socket(fileno=listener) as sock:
                    sock.accept()[0].sendall(b"hello")
                return 0
            case "leave":
                leave_behind(which)
        time.sleep(600)
        return 0


def leave_behind(how: str) -> None:
    """Start a process that sleeps, and print its pid."""
    clean = {"PATH": os.environ["PATH"]}
    match how:
        case "child":
            print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
        case "session":
            print(subprocess.Popen(["sleep", "600"], start_new_session=True, env=clean).pid, flush=True)
        case "daemon":  # as daemon(3), and it forgets its environment
            subprocess.run(["sh", "-c", "setsid sleep 600 & echo $!"], env=clean, check=True)
        case "fork":  # not another program, so that it is told from its parent by nothing
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    print(os.getpid(), flush=True)
                    time.sleep(600)
                os._exit(0)
        case "marked daemon":
            kept = clean | {TAG: os.environ[TAG]}
            subprocess.run(["sh", "-c", "setsid sleep 600 & echo $!"], env=kept, check=True)


def _no_more_processes() -> int:
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _what_it_is(told: Assignment) -> dict[str, Any]:
    return {
        "rank": told.place.rank,
        "local_rank": os.environ["LOCAL_RANK"],
        "name": Path("/proc/self/comm").read_text().strip(),
        "session": os.getsid(0) == os.getpid(),
        "files": sorted(str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.exists()),
        "signals": [str(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)],
    }


if __name__ == "__main__":
    serve(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), Light())
