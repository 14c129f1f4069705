"""S3 servers, and a link to them of limited bandwidth, each in a process of its own."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from memory_s3 import COUNT

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 30.0


@dataclass(frozen=True)
class Server:
    url: str
    requests: Callable[[], int]
    """How many it has answered so far."""


@contextlib.contextmanager
def memory_server() -> Iterator[Server]:
    """One that costs little: see memory_s3."""
    with _told_url([sys.executable, str(ROOT / "benchmarks" / "memory_s3.py")]) as url:
        yield Server(url, lambda: int(urllib.request.urlopen(url + COUNT).read()))


@contextlib.contextmanager
def moto_server() -> Iterator[Server]:
    """moto's, as it comes."""
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="convoy-moto-", dir="/dev/shm") as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "moto.server", "-p", str(port)]
        with (
            open(log, "wb") as file,
            subprocess.Popen(command, env={**os.environ, "TMPDIR": folder}, stderr=file) as run,
        ):
            try:
                _await(port)
                yield Server(f"http://127.0.0.1:{port}", lambda: log.read_bytes().count(b" HTTP/1.1"))
            finally:
                run.kill()


@contextlib.contextmanager
def capped_link(server: Server, bytes_per_second: int) -> Iterator[str]:
    """URL of a proxy that lets so many bytes of bodies pass in each direction."""
    command = [sys.executable, "-m", "tests.s3_proxy", server.url, "--bytes-per-second", str(bytes_per_second)]
    with _told_url(command) as url:
        yield url


@contextlib.contextmanager
def _told_url(command: list[str]) -> Iterator[str]:
    """The first line that a server prints."""
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        try:
            yield run.stdout.readline().strip()
        finally:
            run.kill()


def _await(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


SERVERS = {"memory": memory_server, "moto": moto_server}
