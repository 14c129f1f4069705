"""Where flow tests run: a folder of their own for Metaflow's datastore and Convoy's jobs, and commands run there."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
FLOW = REPOSITORY / "flows" / "train_flow.py"
SMOKE = REPOSITORY / "configs" / "train" / "cpu-smoke.yaml"
CONVOY = Path(sys.executable).with_name("convoy")

_NOT_INHERITED = ("CONVOY_ROOT", "CONVOY_CONFIGS", "METAFLOW_PROFILE", "METAFLOW_RUN_ID")
_OWN_FOLDERS = ("CONVOY_ROOT", "METAFLOW_DATASTORE_SYSROOT_LOCAL", "METAFLOW_HOME", "XDG_CACHE_HOME")
_CLIENT = "from metaflow import Flow, Run, Step, Task, namespace\nfrom metaflow.cards import get_cards\nimport json\n"


@dataclass(frozen=True)
class Place:
    """A working directory whose `.metaflow` and jobs no other test sees."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """Where the jobs are."""
        return self.folder / "jobs"

    @property
    def environment(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
        own = {
            "CONVOY_ROOT": str(self.root),
            "METAFLOW_DATASTORE_SYSROOT_LOCAL": str(self.folder),
            "METAFLOW_HOME": str(self.folder / "home"),
            "METAFLOW_USER": "tester",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "CUDA_VISIBLE_DEVICES": "",
            "METAFLOW_S3_WORKER_COUNT": "2",  # of 64: each is a process, for a few small objects
        }
        return {**inherited, **own, **self.variables}

    def start(self, *command: str | Path) -> "subprocess.Popen[str]":
        self.folder.mkdir(parents=True, exist_ok=True)
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*map(str, command)], cwd=self.folder, env=self.environment, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *command: str | Path, seconds: float = 240) -> "subprocess.CompletedProcess[str]":
        """seconds: for it to end."""
        process = self.start(*command)
        stdout, stderr = process.communicate(timeout=seconds)
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def run_by_cron(self, line: str, seconds: float = 240) -> "subprocess.CompletedProcess[str]":
        """In the little environment that cron gives a line of its table (crontab(5)): no user's PATH, no USER."""
        given = {"HOME": os.environ["HOME"], "LOGNAME": "tester", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
        kept = {key: value for key, value in self.environment.items() if key.startswith(_OWN_FOLDERS)}
        words = [f"{key}={value}" for key, value in (given | kept).items()]
        return self.run("env", "-i", *words, "/bin/sh", "-c", line, seconds=seconds)

    def flow(self, *words: str, overrides: str = "") -> "subprocess.CompletedProcess[str]":
        """`python flows/train_flow.py` with the smoke configuration, these overrides and words."""
        return self.run(*flow_command(*words, overrides=overrides))

    def convoy(self, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        return self.run(CONVOY, *words)

    def client(self, code: str) -> Any:
        """What Metaflow's Client API gives: the value of `answer` after `code`, as JSON data."""
        script = f"{_CLIENT}namespace(None)\n{code}\nprint('ANSWER', json.dumps(answer))"
        done = self.run(sys.executable, "-c", script)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.rpartition("ANSWER ")[2])

    def runs(self) -> list[str]:
        """Ids of the runs that Metaflow knows here, oldest first."""
        folder = self.folder / ".metaflow" / "TrainFlow"
        found = (path.name for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else ()
        return sorted(found, key=int)


def flow_command(*words: str, overrides: str = "") -> list[str]:
    laid_on = ["--config-value", "set", overrides] if overrides else []
    return [sys.executable, str(FLOW), "--config", "run", str(SMOKE), *laid_on, *words]


def wait_for(condition: Callable[[], Any], seconds: float = 120, pause: float = 0.02) -> Any:
    """The first true value of `condition`, asked after each `pause` of so many seconds. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(pause)
    raise AssertionError(f"not within {seconds} s")


def worker_pid(job: Path | None, generation: int, node: int, root: int = 1) -> int | None:
    """The process of a node's one worker, known by the log it writes. job: None for one on S3, whose logs lie in a
    temporary folder first; `root` is then a process that started it."""
    log = f"{job or ''}/logs/{generation:06d}/{node:05d}/rank{node:05d}.log"
    writers = set()
    everyone = [int(process.name) for process in Path("/proc").iterdir() if process.name.isdigit()]
    for pid in with_all_below(root) if job is None else everyone:
        with contextlib.suppress(OSError):  # it ended meanwhile, or is not ours to look at
            output = str(Path(f"/proc/{pid}/fd/1").readlink())
            if output == log or (job is None and output.endswith(log)):
                writers.add(pid)
    # What a worker starts has its output too, and may have a lower number: those begin anew.
    return next((pid for pid in writers if _parent_of(pid) not in writers), None)


def agent_pid(job: Path | None, generation: int, node: int, root: int = 1) -> int | None:
    """The process of a node's agent, which started the one that its workers are forked from. Named as `worker_pid`."""
    worker = worker_pid(job, generation, node, root)
    return None if worker is None else _parent_of(_parent_of(worker)) or None


def with_all_below(root: int) -> list[int]:
    """A process, and then all that descend from it."""
    parents = {int(p.name): _parent_of(int(p.name)) for p in Path("/proc").iterdir() if p.name.isdigit()}
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _parent_of(pid: int) -> int:
    """0: it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def own_lines(stderr: str) -> Sequence[str]:
    """What Convoy printed, without Metaflow's banner."""
    banner = ("Metaflow ", "Validating", "    The graph", "Running pylint", "    Pylint")
    return [line for line in stderr.splitlines() if line.strip() and not line.startswith(banner)]
