"""What a trial of some drills must show beyond what every trial must, and what a gang must not leave on this machine.

Each function returns what is wrong, one line each; empty: nothing. Ports are held by processes, which are checked.
"""

import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path

from convoy.checkpoint.writer.prune import prune, take_inventory
from convoy.config.checkpoint import RetentionConfig
from convoy.drills.observe import SLACK, Observation
from convoy.gang.workers.processes import command_of
from convoy.job.events.registry import (
    CheckpointAlert,
    CheckpointSaved,
    EventsDropped,
    GangStopped,
    NoticeReceived,
    Restored,
    StepDone,
    Stopping,
)
from convoy.job.lineage import counted_commits, generation_numbers
from convoy.storage import Store

STOPPED_SECONDS = 3.0
"""Target for all workers to be stopped whose gang has lost a node, or whose node has lost its gang."""

SAVED_SECONDS = 10.0
"""Target for the save that a gang agrees on for a notice, from the notice to the commit."""

STILL_SECONDS = 5.0
"""Longer than that from one step to the next, and training has stopped."""

KEEP_ALL = 1000

UNDER_WAY_SECONDS = 3.0
"""A save that has written all it needs when its storage fails is still committed, and reported within this."""


def late_stop_problems(trial: Observation, nodes: Collection[int]) -> list[str]:
    """Whether these nodes reported in time that none of their workers is left."""
    began = _injected_at(trial)
    generation = max((e.generation for e in trial.events if e.t <= began), default=0)
    stops = [e for e in trial.events if isinstance(e, GangStopped) and e.generation == generation]
    took = {e.node: e.t - began for e in stops}
    wrong = [f"node {node} never reported that its workers had stopped" for node in sorted(set(nodes) - took.keys())]
    late = {node: took[node] for node in nodes if took.get(node, 0.0) > SLACK * STOPPED_SECONDS}
    wrong += [
        f"the workers of node {node} were stopped after {seconds:.2f} s, more than {SLACK} times {STOPPED_SECONDS:g} s"
        for node, seconds in sorted(late.items())
    ]
    return wrong


def wrong_restore_problems(trial: Observation) -> list[str]:
    """Whether any generation went on from another commit than it was formed for, or two of one step were ever read."""
    wrong, read = [], defaultdict[int, set[int]](set)
    for e in trial.events:
        if not isinstance(e, Restored):
            continue
        read[e.step].add(e.from_generation)
        parent = trial.history.generations[e.generation].parent
        if parent is None or (parent.generation, parent.step) != (e.from_generation, e.step):
            wrong.append(f"generation {e.generation} read step {e.step} of {e.from_generation}, not {parent}")
    wrong += [f"two commits of step {step} were read" for step, makers in read.items() if len(makers) > 1]
    counted = Counter(ref.step for ref in counted_commits(trial.history))
    wrong += [f"two commits of step {step} count" for step, count in counted.items() if count > 1]
    return wrong


def notice_problems(trial: Observation, node: int, source: str, action: str) -> list[str]:
    """Whether the node that has the notice noticed it once, and it led to the right action."""
    notices = [(e.node, e.source, e.action) for e in trial.events if isinstance(e, NoticeReceived)]
    expected = [(node, source, action)]
    return [] if notices == expected else [f"notices (node, source, action) are {notices}, not {expected}"]


def late_save_problems(trial: Observation, *, at_end: bool) -> list[str]:
    """Whether what the gang agreed to save was committed in time. at_end: the attempt ends with it."""
    began = _injected_at(trial)
    stops = [e.step for e in trial.events if isinstance(e, Stopping) and e.reason == "preempted" and e.t >= began]
    if at_end != bool(stops):
        return [f"the gang agreed to end at steps {stops}" if stops else "the gang did not agree to save and end"]
    saves = [e for e in trial.events if isinstance(e, CheckpointSaved) and e.t >= began]
    agreed = [e.t - began for e in saves if not at_end or e.step == stops[0]]
    if not agreed:
        return ["nothing was saved after the notice"]
    took = min(agreed)
    if took > SLACK * SAVED_SECONDS:
        return [f"the save was committed {took:.2f} s after the notice, more than {SLACK} times {SAVED_SECONDS:g} s"]
    return []


def recompute_problems(trial: Observation) -> list[str]:
    """Whether anything was done again."""
    return [f"{trial.steps_recomputed} steps were done again"] if trial.steps_recomputed else []


def next_tier_save_problems(trial: Observation, tier: str, refused_since: float) -> list[str]:
    """Whether the first save after the root failed is on the next tier, whose root that is, and none was given up.
    refused_since: wall time from which on the root took nothing."""
    saves = [e for e in trial.events if isinstance(e, CheckpointSaved) and e.t > refused_since + UNDER_WAY_SECONDS]
    wrong = [f"{e.failures} saves in a row were abandoned" for e in trial.events if isinstance(e, CheckpointAlert)]
    if not saves:
        return [*wrong, "nothing was saved after the root had failed"]
    if not saves[0].tier.startswith(tier + "/"):
        wrong.append(f"the next save, of step {saves[0].step}, is on {saves[0].tier}, not below {tier}")
    return wrong


def stall_problems(trial: Observation, window_seconds: float) -> list[str]:
    """Whether training stopped in so many seconds after the injection."""
    began = _injected_at(trial)
    at = [(e.t, e.step) for e in trial.events if isinstance(e, StepDone)]
    steps = [(a, b) for a, b in pairwise(at) if b[0] > began and a[0] < began + window_seconds]
    if not steps:
        return ["no step was done after the injection"]
    return [
        f"training stood still for {b[0] - a[0]:.2f} s after step {a[1]}"
        for a, b in steps
        if b[0] - a[0] > STILL_SECONDS
    ]


def incomplete_log_problems(trial: Observation) -> list[str]:
    """Whether the log has every step, though it could not be written for a while."""
    lost = [f"{e.events} events were lost" for e in trial.events if isinstance(e, EventsDropped)]
    steps = {e.step for e in trial.surviving_events if isinstance(e, StepDone)}
    last = trial.config.train.steps if trial.commit is None else trial.commit.step
    missing = sorted(set(range(1, last + 1)) - steps)
    return [*lost, *([f"the log lacks steps {missing}"] if missing else [])]


def prune_and_find_orphans(store: Store) -> list[str]:
    """Whether anything of a save that was cut short stays for ever: removes what is to go when its time is over."""
    newest = max(generation_numbers(store), default=0)
    pruned = prune(store, newest, RetentionConfig(keep_last=KEEP_ALL), grace_seconds=0.0)
    if pruned.error:
        return [f"what is left of saves was not removed: {pruned.error}"]
    there = take_inventory(store)
    orphans = [a for a in there.attempts if a.ref not in there.commits]
    return [f"{a.bytes} bytes of a save of step {a.ref.step} stay, which has no commit" for a in orphans]


def _injected_at(trial: Observation) -> float:
    """Wall time of the injection; infinite if there was none, which is reported elsewhere."""
    return next(iter(trial.injected), math.inf)


SHARED_MEMORY = Path("/dev/shm")

GRACE_SECONDS = 3.0
"""For processes that were ordered to end with their agent."""

_OWNED = re.compile(r"convoy-(\d+)-\d+-.*")
"""A worker's folder there, by its process id; what a worker left that was killed is removed by a later one."""


def leftover_process_problems(living: Callable[[], set[int]]) -> list[str]:
    """Processes of the gang that do not end, after a moment; one line each."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := living()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"process {pid} is left: {command_of(pid)[:200]}" for pid in sorted(left)]


def leftover_memory_problems(pids: set[int], folder: Path = SHARED_MEMORY) -> list[str]:
    """Shared memory of these processes, which have ended; one line each."""
    wrong = []
    for path in folder.glob("convoy-*"):
        owner = _OWNED.fullmatch(path.name)
        if owner and int(owner[1]) in pids:
            wrong.append(f"{path} is left")
    return sorted(wrong)


def leftover_file_problems(folder: Path) -> list[str]:
    """What is in a folder for temporary files after the processes that used it have ended; one line each."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [f"temporary file {name} is left" for name in names]
