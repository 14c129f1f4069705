"""A gang that Metaflow starts: the train flow on this machine, whose `@retry` makes each further attempt."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from convoy.config.loader import shipped
from convoy.config.run import RunConfig
from convoy.drills.fault import Fault
from convoy.drills.gang import SOON_SECONDS, DrillError, DrillGang
from convoy.gang.local_node import NodeResult
from convoy.gang.messages import GangOutcome
from convoy.gang.workers.processes import descendants, living, read_stat
from convoy.job.events.types import Event, GenerationEnded, GenerationStarted

FLOW = shipped("flows") / "train_flow.py"

RETRIES = 4


def lacking(fault: Fault) -> str | None:
    """What a drill through Metaflow lacks here."""
    if not FLOW.is_file():
        return "the repository's flows/train_flow.py"
    if fault.seconds is not None:
        return "a way to end a run that Metaflow starts again"
    return None


class FlowGang(DrillGang):
    """One run. All its agents have one environment, node 0's."""

    def __init__(self, fault: Fault, config: RunConfig, job: str, root: str) -> None:
        super().__init__(fault, config, job, root)
        self._run: subprocess.Popen[bytes] | None = None

    def agent(self, node: int) -> int:
        """Known by its first worker: the parent of the process that forked it."""
        server = _parent(self.worker(node * self.size.nproc))
        agent = _parent(server) if server else 0
        if not agent:
            raise DrillError(f"node {node} has ended")
        return agent

    def tree(self, node: int) -> set[int]:
        """Without the other nodes' processes: on one machine, Metaflow starts those from node 0's."""
        others = [self.agent(other) for other in range(self.size.nodes) if other != node]
        below = super().tree(node)
        parents = living()
        return below.difference(*({other, *descendants(parents, other)} for other in others if other in below))

    def start(self) -> None:
        """The run; its retries are Metaflow's."""
        self.attempt = 0
        cluster = self.config.cluster.model_copy(update={"retries": RETRIES, "minutes_between_retries": 0})
        config = self.folder / "config.yaml"  # JSON is YAML
        config.write_text(self.config.model_copy(update={"cluster": cluster}).model_dump_json())
        temporary = self.temporary_folder(0)
        temporary.mkdir()
        with open(self.folder / "run.log", "wb") as output:
            self._run = subprocess.Popen(
                [_python(), str(FLOW), "--config", "run", str(config), "run", "--job", self.job],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(None) | self._own(),
                start_new_session=True,
            )

    def over(self) -> bool:
        return self._run is not None and self._run.poll() is not None

    def ended(self) -> bool:
        return self.over()

    def results(self) -> Sequence[Sequence[NodeResult]]:
        """By the log: how the last generation of each attempt ended on each node."""
        events = self.progress().events
        starts = {e.generation: e.attempt for e in events if isinstance(e, GenerationStarted)}
        last = {attempt: generation for generation, attempt in sorted(starts.items())}
        results = [self._ended(events, generation) for _, generation in sorted(last.items())]
        if self._run is None or self._run.poll() != 0:
            log = (self.folder / "run.log").read_text(errors="replace").strip().splitlines()
            results.append([NodeResult(error=f"the run failed: {log[-1] if log else 'it said nothing'}")])
        return results

    def kill(self) -> None:
        super().kill()
        if self._run is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._run.wait(SOON_SECONDS)

    def _ended(self, events: Sequence[Event], generation: int) -> Sequence[NodeResult]:
        ends = {e.node: e.outcome for e in events if isinstance(e, GenerationEnded) and e.generation == generation}
        return [
            NodeResult(outcome=GangOutcome(outcome=ends[node]))
            if node in ends
            else NodeResult(error="it told no end", was_killed=True)
            for node in range(self.size.nodes)
        ]

    def _own(self) -> dict[str, str]:
        """Nothing of the user's Metaflow is touched, nor read."""
        return {
            "CONVOY_ROOT": self.root,
            "METAFLOW_DATASTORE_SYSROOT_LOCAL": str(self.folder),
            "METAFLOW_HOME": str(self.folder / "home"),
            "METAFLOW_DEFAULT_DATASTORE": "local",
            "METAFLOW_DEFAULT_METADATA": "local",
            "METAFLOW_USER": "drill",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }


def _python() -> str:
    """This interpreter by the name by which Metaflow starts the other nodes."""
    python = Path(sys.executable).with_name("python")
    return str(python) if python.exists() else sys.executable


def _parent(pid: int) -> int:
    """0: it has ended."""
    stat = read_stat(pid)
    return stat.parent if stat is not None else 0
