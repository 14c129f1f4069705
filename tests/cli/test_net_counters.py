"""`convoy net counters` runs a command as if it were alone, and reports the traffic meanwhile."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli import assert_refused

pytestmark = pytest.mark.processes

MEGABYTES = 8

PAIR = f"""
import os, socket, sys
server = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    with socket.create_connection(server.getsockname()) as peer:
        peer.sendall(bytes({MEGABYTES * 10**6}))
    os._exit(0)
received, (connection, _) = 0, server.accept()
while piece := connection.recv(2**20):
    received += len(piece)
os.wait()
print("received", received)
"""


def counters(*words: str) -> list[str]:
    return [sys.executable, "-m", "convoy", "net", "counters", *words]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(counters(*words), capture_output=True, text=True, timeout=60)


def test_two_processes_over_loopback_are_counted_and_json_is_alone_on_stdout() -> None:
    done = run("--json", "--", sys.executable, "-c", PAIR)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"received {MEGABYTES * 10**6}\n"
    traffic = json.loads(done.stdout)
    (lo,) = [each for each in traffic["interfaces"] if each["loopback"]]
    assert lo["name"] == "lo"
    assert lo["sent_bytes"] >= MEGABYTES * 10**6  # other processes of this machine use it, too
    assert traffic["transport"]["tcp_sent_segments"] > 0


def test_the_page_follows_what_the_command_printed() -> None:
    done = run("--", "echo", "hello")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("hello\n")
    assert "lo (loopback)" in done.stdout


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -KILL $$", 137)])
def test_the_exit_code_is_the_command_s(script: str, code: int) -> None:
    done = run("--", "sh", "-c", script)
    assert done.returncode == code
    assert "Traffic of this host" in done.stdout


@pytest.mark.parametrize(("name", "code"), [("INT", 130), ("TERM", 143), ("USR1", 3)])
def test_signals_reach_the_command_and_its_traffic_is_still_reported(name: str, code: int) -> None:
    script = "trap 'exit 3' USR1; echo ready; while :; do sleep 0.02; done"
    # Of a job in the background of a shell without job control, SIGINT is ignored, and a child inherits that.
    with subprocess.Popen(
        counters("--", "sh", "-c", script),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.Signals[f"SIG{name}"])
        assert "Traffic of this host" in process.stdout.read()
        assert process.wait(30) == code


def test_the_command_has_no_signal_blocked_and_gets_stdin() -> None:
    status = "cat; grep SigBlk /proc/self/status"
    done = subprocess.run(
        counters("--", "sh", "-c", status), input="text\n", capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("text\nSigBlk:\t0000000000000000\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["no-such-program"], "no-such-program: cannot be started: No such file or directory"),
        ([], "COMMAND: required, after --; for example: convoy net counters -- torchrun train.py"),
    ],
)
def test_a_command_that_cannot_be_started_is_one_line(words: Sequence[str], line: str) -> None:
    assert_refused(line, "net", "counters", "--", *words)


def test_no_signal_stays_blocked_after_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    assert_refused(f"{tmp_path}: cannot be started: Permission denied", "net", "counters", "--", tmp_path)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == before
