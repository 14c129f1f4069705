"""What `convoy run` sees of a flow: run by run, as a plan in JSON says, this happens to its job.

Usage: a_flow.py PLAN [words] run [words] --runner-attribute-file FILE
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from convoy.gang.notices.sources import DrainRequest, read_drain, request_drain
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import FailureDetected, GenerationEnded, GenerationStarted, NoticeReceived
from convoy.job.generations import form_generation
from convoy.job.heartbeat import LiveMarker
from convoy.job.lineage import CommitRef
from convoy.job.record import job_store
from convoy.storage import Store


def main(plan: Path, words: list[str]) -> int:
    turns = json.loads(plan.read_text())
    turn, left = turns[0], turns[1:]
    plan.write_text(json.dumps(left))
    number = 100 - len(left)
    (tag,) = (word for word in words if word.startswith("job:"))
    if turn.get("makes_run", True):
        attributes = Path(words[words.index("--runner-attribute-file") + 1])
        identity = {"run_id": str(number), "flow_name": "AFlow", "metadata": f"local@{plan.parent}"}
        attributes.write_text(json.dumps(identity))
        happen(job_store(os.environ["CONVOY_ROOT"], tag.removeprefix("job:")), f"AFlow/{number}", turn)
    return int(turn.get("code", 0))


def happen(store: Store, run: str, turn: dict[str, Any]) -> None:
    """One generation, to the end that the plan says."""
    if "end" not in turn:
        return
    generation = form_generation(
        store,
        formation=f"{run.rpartition('/')[2]}/train/2/0",
        nodes=1,
        world_size=1,
        config_hash="",
        rendezvous="127.0.0.1:1",
    ).generation
    writer = EventWriter(store, generation, 0)
    writer.append(GenerationStarted(run=run))
    step = turn.get("step", 0)
    if turn["end"] == "drained by a person":
        request_drain(store, DrainRequest(run=run, now=False, host="desk", requested=time.time()))
    if turn["end"] == "waits to be drained":
        until_drained(store, run)
    if turn["end"] == "is interrupted while it prepares":
        with LiveMarker(store, store.uri.rpartition("/")[2], run, preparing=True):
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(60)
    if turn["end"] == "failed":
        cause = turn["cause"]
        worker = {"worker": 0, "exit_code": 1} if cause == "exited" else {}
        writer.append(FailureDetected(cause=cause, failed_node=0, step=step, **worker))
    if turn["end"] == "preempted":
        writer.append(NoticeReceived(source="spot", notice="end", action="end", text="terminate"))
    if turn["end"] != "failed":
        store.create(CommitRef(generation=generation, step=step).name, b"{}")
    ends = {"failed": "failed", "finished": "finished"}
    writer.append(GenerationEnded(outcome=ends.get(turn["end"], "preempted"), step=step))  # type: ignore[arg-type]
    writer.close()


def until_drained(store: Store, run: str) -> None:
    with LiveMarker(store, store.uri.rpartition("/")[2], run):
        os.kill(os.getppid(), signal.SIGTERM)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            wish = read_drain(store)
            if wish is not None and wish.run == run:
                return
            time.sleep(0.05)
    raise SystemExit("nobody drained the run")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
