"""A node of a gang that is on this host, without Metaflow: a process that runs its agent to the end, and tells of it.

`python -m convoy.gang.local_node SPEC RESULT PARENT`, which `start` starts, ends at once with the process PARENT.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from convoy.config.run import RunConfig
from convoy.gang.agent import Gang
from convoy.gang.assignment import Script
from convoy.gang.notices.sources import NOTICE_FILE
from convoy.gang.outcome import Outcome
from convoy.gang.task import Node, Task
from convoy.gang.workers.prctl import signal_at_end_of_parent
from convoy.gang.workers.worker import signal_name

FOREVER = 3600.0


class Spec(BaseModel):
    """What a node's process is told."""

    model_config = ConfigDict(frozen=True)

    config: RunConfig
    job: str
    root: str
    data_id: str
    fingerprint: str
    index: int
    nodes: int
    nproc: int
    run: str
    """In place of a Metaflow run's pathspec."""
    attempt: int
    main_host: str = "127.0.0.1"
    script: Script | None = None
    """What the workers run; None: Convoy's training."""
    notice_file: Path = NOTICE_FILE
    """In place of the one of Metaflow's monitor on this machine."""

    @property
    def task(self) -> Task:
        return Task(
            config=self.config,
            job=self.job,
            root=self.root,
            data_id=self.data_id,
            fingerprint=self.fingerprint,
            usd_per_hour=None,
            known=self.script is None,
            script=self.script,
        )

    @property
    def node(self) -> Node:
        return Node(
            index=self.index,
            nodes=self.nodes,
            nproc_per_node=self.nproc,
            main_host=self.main_host,
            run=self.run,
            formation=f"{self.run}/gang/1/{self.attempt}",
            attempt=self.attempt,
            shares_host=True,
            notice_file=self.notice_file,
        )


class Told(BaseModel):
    """How it ended on a node: one of the two."""

    model_config = ConfigDict(frozen=True)

    outcome: Outcome | None = None
    error: str = ""
    """What kept the node from being part of a gang, or ended its part without an outcome."""
    gone: bool = False
    """It was killed, and told nothing."""


@dataclass(frozen=True)
class LocalNode:
    """A node's process, which was started."""

    process: "subprocess.Popen[bytes]"
    result: Path
    log: Path

    def told(self) -> Told:
        """How it ended; for a node that could not tell, how its process did."""
        code = self.process.poll()
        if self.result.exists():
            return Told.model_validate_json(self.result.read_text())
        if code is None:
            return Told(error="it did not end")
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
        said = self.log.read_text(errors="replace").strip().splitlines()
        return Told(error=f"its agent {how}" + (f": {said[-1]}" if said else ""), gone=code == -signal.SIGKILL)


def start(
    spec: Spec, stem: Path, environment: Mapping[str, str] | None = None, command: Sequence[str] = ()
) -> LocalNode:
    """Start a node. It dies when the calling thread ends, and all its workers with it.

    stem: of the paths of its files, such as `nodes/0-1` for nodes/0-1.log. environment: None: this process's own.
    command: what runs it, in front of the interpreter.
    """
    told, result, log = (stem.with_name(f"{stem.name}.{end}") for end in ("spec.json", "result.json", "log"))
    told.parent.mkdir(parents=True, exist_ok=True)
    told.write_text(spec.model_dump_json())
    words = [*command, sys.executable, "-m", "convoy.gang.local_node", str(told), str(result), str(os.getpid())]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    return LocalNode(process, result, log)


def main(spec: Path, result: Path, parent: int) -> None:
    signal_at_end_of_parent(signal.SIGKILL)  # its workers end with it
    if os.getppid() != parent:
        return
    told = _run(Spec.model_validate_json(spec.read_text()))
    beside = result.with_suffix(".new")
    beside.write_text(told.model_dump_json())
    beside.rename(result)


def _run(spec: Spec) -> Told:
    try:
        with Gang(spec.task, spec.node) as gang:
            outcome = None
            while outcome is None:
                outcome = gang.wait(FOREVER)
            return Told(outcome=outcome)
    except Exception as error:
        return Told(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.flush()
    os._exit(0)  # whatever a thread still waits for in a storage that hangs
