"""Ctrl-C in a terminal: the gang saves and ends, card and `convoy show` say so, and the terminal how to continue."""

import os
import pty
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from convoy.job.heartbeat import read_heartbeat
from convoy.job.record import job_store
from tests.flows.places import Place, flow_command, wait_for
from tests.flows.runs import card_text

pytestmark = [pytest.mark.slow, pytest.mark.alone]

JOB = "stopped-by-hand"
ENDLESS = "train.steps=100000 checkpoint.every_steps=20 report.card_refresh_seconds=2 checkpoint.export_model=false"
INTERRUPT = b"\x03"
ENDS_SECONDS = 60.0


@dataclass
class Terminal:
    """A run in a terminal of its own, and what it shows."""

    place: Place
    process: "subprocess.Popen[bytes]"
    master: int
    shown: bytearray

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def trains(self) -> bool:
        return re.search(rb"step [1-9]\d* of", self.shown) is not None

    def lines(self) -> list[str]:
        plain = re.sub(r"\x1b\[[0-9;]*[mK]", "", self.shown.decode(errors="replace"))
        return [line.rstrip() for line in plain.splitlines() if line.strip()]

    def card(self) -> str:
        """Node 0's."""
        (file,) = [f for f in self.place.folder.rglob("*.html") if "_node_" not in str(f)]
        return card_text(file.read_text())


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    place, shown = Place(tmp_path), bytearray()
    master, slave = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *flow_command("run", "--job", JOB, overrides=ENDLESS)],
        cwd=place.folder, env=place.environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    reader = threading.Thread(target=read_on, args=(master, shown), daemon=True)
    reader.start()
    yield Terminal(place, process, master, shown)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_on(master: int, shown: bytearray) -> None:
    while True:
        try:
            shown += os.read(master, 65536)
        except OSError:  # the terminal's last process has ended
            return


def ended(place: Place) -> bool:
    """Node 0's agent is no more, and with it its workers."""
    beat = read_heartbeat(job_store(str(place.root), JOB), time.time())
    return beat is None or not beat.live


def test_ctrl_c_saves_and_tells_what_was_saved_and_how_to_continue(terminal: Terminal) -> None:
    wait_for(terminal.trains)
    terminal.press(INTERRUPT)
    terminal.process.wait(ENDS_SECONDS)
    lines = terminal.lines()
    (state,) = [line for line in lines if line.startswith("convoy: job ")]
    found = re.fullmatch(rf"convoy: job {JOB}: interrupted at step (\d+) \(Ctrl-C\)\. (.*)", state)
    assert found is not None, state
    assert re.search(r"The newest checkpoint holds step \d+\.|No checkpoint exists yet\.", found[2])
    # Metaflow has its own word before, which depends on what it sees first: the key, or a task that has ended. What was
    # saved and what to type comes last.
    assert re.fullmatch(r"Aborted!| *Step train \(task-id \d+\) failed\.", lines[lines.index(state) - 1])
    assert [line.split()[0] for line in lines[lines.index(state) + 1 :]] == ["card", "show", "continue"]
    assert lines[-1].endswith(f"run --job {JOB}")
    assert not [line for line in lines if "Card render failed" in line]
    wait_for(lambda: ended(terminal.place), ENDS_SECONDS)
    wait_for(lambda: f"Interrupted at step {found[1]}" in terminal.card(), ENDS_SECONDS)
    shown = terminal.place.convoy("show", JOB).stdout
    assert f"Interrupted at step {found[1]}" in shown
    assert found[2].split(". ")[0] in " ".join(shown.split())


def test_a_killed_launcher_leaves_nothing_that_trains_and_a_true_card(terminal: Terminal) -> None:
    wait_for(terminal.trains)
    os.kill(launcher(terminal.process.pid), signal.SIGKILL)
    wait_for(lambda: ended(terminal.place), ENDS_SECONDS)
    wait_for(lambda: "Interrupted at step " in terminal.card(), ENDS_SECONDS)
    assert "is gone" in terminal.card()


def launcher(setsid: int) -> int:
    """The process that `setsid --wait` waits for."""
    (child,) = Path(f"/proc/{setsid}/task/{setsid}/children").read_text().split()
    return int(child)
