"""Commands of a flow in processes that are forked from one which has imported Metaflow and Convoy.

What such a command does itself is little beside its imports. It is a process of its own all the same, with its own
arguments, environment, folder and exit. For commands that start no task: tasks would be started anew in any case.
"""

import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.flows.places import REPOSITORY, Place

_MAX_BYTES = 1 << 17
_READ_AT_IMPORT = {"METAFLOW_DATASTORE_SYSROOT_LOCAL": ".", "METAFLOW_HOME": "home", "METAFLOW_USER": "tester"}
"""What Metaflow reads as it is imported: here the working directory, which is each command's own, and nobody's home."""


@dataclass(frozen=True)
class Forked:
    """Runs commands of which each is forked."""

    _channel: socket.socket

    def run(self, place: Place, script: Path, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        """As `place.run(sys.executable, script, *words)`."""
        place.folder.mkdir(parents=True, exist_ok=True)
        argv = [str(script), *map(str, words)]
        request = json.dumps({"argv": argv, "folder": str(place.folder), "environment": place.environment})
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            socket.send_fds(self._channel, [request.encode()], [stdout.fileno(), stderr.fileno()])
            code = int(self._channel.recv(_MAX_BYTES))
            return subprocess.CompletedProcess(argv, code, _text(stdout), _text(stderr))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@contextmanager
def forking() -> Iterator[Forked]:
    """The process that commands are forked from, for as long as the block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("METAFLOW_")}
    with ours, theirs:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.flows.forked", str(theirs.fileno())],
            cwd=REPOSITORY,
            env=environment | _READ_AT_IMPORT,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        try:
            ours.settimeout(240)
            yield Forked(ours)
        finally:
            ours.close()
            server.wait(60)


def _serve(channel: socket.socket) -> None:
    """Fork a process for each request. Returns at the end, and in each of them when it has been its command."""
    import metaflow.cards  # noqa: F401

    gc.freeze()  # so that processes share it
    while True:
        packet, files, _, _ = socket.recv_fds(channel, _MAX_BYTES, 2)
        if not packet:
            return None
        if (pid := os.fork()) == 0:
            channel.close()
            return _become(files, **json.loads(packet))
        for file in files:
            os.close(file)
        channel.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _become(output: list[int], argv: list[str], folder: str, environment: dict[str, str]) -> None:
    """Be the command: what it raises, SystemExit too, is left to the interpreter."""
    for number, file in enumerate(output, start=1):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[0] = argv, str(Path(argv[0]).parent)
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
