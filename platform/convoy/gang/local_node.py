"""A node of a gang on this host, without Metaflow: a process that runs its agent to the end, and records the result.

`start_node` runs `python -m convoy.gang.local_node SPEC RESULT PARENT`, which ends at once with the process PARENT.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from convoy.gang.agent import Gang
from convoy.gang.messages import GangOutcome
from convoy.gang.task import NOTICE_FILE, Node, Task
from convoy.gang.workers.processes import signal_at_end_of_parent
from convoy.gang.workers.worker import signal_name

FOREVER = 3600.0


class NodeSpec(BaseModel, frozen=True):
    """What a node's process runs."""

    task: Task
    node: Node


class NodeResult(BaseModel, frozen=True):
    """How it ended on a node: an outcome or an error."""

    outcome: GangOutcome | None = None
    error: str = ""
    """What kept the node from joining a gang, or ended its part without an outcome."""
    was_killed: bool = False
    """The process was killed, and left no result."""


@dataclass(frozen=True)
class LocalNode:
    """A node's process, which was started."""

    process: "subprocess.Popen[bytes]"
    result_file: Path
    log: Path

    def result(self) -> NodeResult:
        """How it ended; if it left no result, how its process ended."""
        code = self.process.poll()
        if self.result_file.exists():
            return NodeResult.model_validate_json(self.result_file.read_text())
        if code is None:
            return NodeResult(error="it did not end")
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
        lines = self.log.read_text(errors="replace").strip().splitlines()
        error = f"its agent {how}" + (f": {lines[-1]}" if lines else "")
        return NodeResult(error=error, was_killed=code == -signal.SIGKILL)


def node_on_this_host(
    index: int, nodes: int, nproc: int, run: str, attempt: int = 0, main_host: str = "127.0.0.1",
    notice_file: Path = NOTICE_FILE,
) -> Node:  # fmt: skip
    """A node whose gang is all on this host. run: in place of a Metaflow run's pathspec."""
    return Node(
        index=index,
        nodes=nodes,
        nproc_per_node=nproc,
        main_host=main_host,
        run=run,
        formation=f"{run}/gang/1/{attempt}",
        attempt=attempt,
        shares_host=True,
        notice_file=notice_file,
    )


def start_node(
    spec: NodeSpec, stem: Path, environment: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> LocalNode:
    """Start a node. It dies when the calling thread ends, and all its workers with it.

    stem: of the paths of its files, such as `nodes/0-1` for nodes/0-1.log. environment: None: this process's own.
    prefix: what runs it, in front of the interpreter.
    """
    spec_file, result, log = (stem.with_name(f"{stem.name}.{end}") for end in ("spec.json", "result.json", "log"))
    spec_file.parent.mkdir(parents=True, exist_ok=True)
    spec_file.write_text(spec.model_dump_json())
    words = [*prefix, sys.executable, "-m", "convoy.gang.local_node", str(spec_file), str(result), str(os.getpid())]
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
    ended = _run_agent(NodeSpec.model_validate_json(spec.read_text()))
    new = result.with_suffix(".new")
    new.write_text(ended.model_dump_json())
    new.rename(result)


def _run_agent(spec: NodeSpec) -> NodeResult:
    try:
        with Gang(spec.task, spec.node) as gang:
            outcome = None
            while outcome is None:
                outcome = gang.wait(FOREVER)
            return NodeResult(outcome=outcome)
    except Exception as error:
        return NodeResult(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.flush()
    os._exit(0)  # despite threads that still wait for a storage that hangs
