"""A flow's process: its words, how it ends, and that none of its children is left."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from convoy.launch.flow_run import FlowProcess, RunIdentity

SAYS = """
import json, os, subprocess, sys, time
from pathlib import Path
here = Path(__file__).parent
(here / "words").write_text(" ".join(sys.argv[1:]))
attributes = Path(sys.argv[sys.argv.index("--runner-attribute-file") + 1])
"""
MADE = """
attributes.write_text(json.dumps({"run_id": 12, "flow_name": "SomeFlow", "metadata": "local@/somewhere"}))
"""
WITH_TASK = """
import signal
NOTES = "import atexit, sys, time; atexit.register(open, sys.argv[1], 'x'); print(); time.sleep(600)"
task = subprocess.Popen([sys.executable, "-c", NOTES, str(here / "ended")], stdout=subprocess.PIPE)
task.stdout.readline()
attributes.write_text(json.dumps({"run_id": 12, "flow_name": "SomeFlow", "metadata": "local@/somewhere"}))
signal.signal(signal.SIGINT, lambda *_: sys.exit(task.wait(20) and 7))
time.sleep(600)
"""
"""As Metaflow: the flow waits for its task, without passing the signal on. The task ends its job when it exits."""
STUBBORN = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(here / "child").write_text(str(child.pid))
while True:
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        pass
"""


@pytest.fixture
def flow(tmp_path: Path) -> Callable[[str], Path]:
    def written(code: str) -> Path:
        file = tmp_path / "flow.py"
        file.write_text(SAYS + code)
        return file

    return written


@pytest.fixture(autouse=True)
def not_in_the_background() -> Iterator[None]:
    """What a shell starts with `&` ignores SIGINT, and so does all that it starts; `convoy run` handles it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_words_stand_around_the_command_run(flow: Callable[[str], Path], tmp_path: Path) -> None:
    with FlowProcess(flow("attributes.write_text('{'); sys.exit(3)"), ["--quiet"], ["--tag", "a"]) as process:
        assert process.wait(30) == 3
        assert process.identity is None  # half of it is written
    words = (tmp_path / "words").read_text()
    assert words.startswith("--quiet run --tag a --runner-attribute-file ")
    assert not Path(words.split()[-1]).parent.exists()


def test_it_tells_which_run_it_made(flow: Callable[[str], Path]) -> None:
    with FlowProcess(flow(MADE + "time.sleep(600)"), [], []) as process:
        until(lambda: process.identity)
        assert process.identity == RunIdentity("SomeFlow/12", "local@/somewhere")
        assert process.wait(0.01) is None
        process.interrupt()
        assert process.wait(30) == -signal.SIGINT


def test_an_interrupt_reaches_the_tasks_so_that_each_can_end_its_job(
    flow: Callable[[str], Path], tmp_path: Path
) -> None:
    with FlowProcess(flow(WITH_TASK), [], []) as process:
        until(lambda: process.identity)
        process.interrupt()
        assert process.wait(30) == 7
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("asked", [True, False])
def test_a_run_that_heeds_no_interrupt_is_ended_with_all_its_children_at_the_latest_on_leaving(
    asked: bool, flow: Callable[[str], Path], tmp_path: Path
) -> None:
    pid = tmp_path / "child"
    with FlowProcess(flow(STUBBORN), [], []) as process:
        until(lambda: pid.exists() and pid.read_text())
        if asked:
            assert process.end(patience_seconds=0.2) == -signal.SIGKILL
    assert process.wait(0) == -signal.SIGKILL
    child = Path(f"/proc/{pid.read_text()}/stat")
    until(lambda: not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z")
