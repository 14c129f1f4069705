"""One node of a drill's gang: `python -m convoy.drills.node SPEC RESULT PARENT` runs its agent to the end, and tells
of it. It ends at once with the process PARENT, which started it."""

import os
import signal
import sys
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from convoy.config.run import RunConfig
from convoy.gang.agent import Gang
from convoy.gang.outcome import Outcome
from convoy.gang.prctl import signal_at_end_of_parent
from convoy.gang.task import Node, Task

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
    main_host: str
    run: str
    attempt: int
    notice_file: Path
    """In place of the one of Metaflow's monitor on this machine."""

    @property
    def task(self) -> Task:
        return Task(self.config, self.job, self.root, self.data_id, self.fingerprint, None, known=True)

    @property
    def node(self) -> Node:
        return Node(
            index=self.index,
            nodes=self.nodes,
            nproc_per_node=self.nproc,
            main_host=self.main_host,
            run=self.run,
            formation=f"{self.run}/drill/1/{self.attempt}",
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
    os._exit(0)  # what a thread still waits for in a storage that hangs is no part of the drill
