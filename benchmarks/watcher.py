"""What watches a gang from one of its nodes, for `overhead.py watching`: the product's own parts.

    python benchmarks/watcher.py < ASSIGNMENT

ASSIGNMENT: a line of JSON, the assignment of the node's one rank. Every node samples its hardware, logs the samples and
serves its metrics; node 0 also feeds the trackers, sends notifications, and serves the metrics of the job, by a report
of the log as it is at the beginning: in a job, the card's thread makes that report, with or without metrics.

It prints a line of JSON when it has begun to work and, after a second line came and the rest was sent, one with
the number of its samples. Imports no torch.
"""

import json
import os
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass

from convoy.config.run import RunConfig
from convoy.gang.messages import GangOutcome
from convoy.gang.task import Assignment, Node, Task
from convoy.gang.telemetry.sampler import HardwareSampler
from convoy.gang.workers.processes import adopt_orphans
from convoy.job.events.log import EventWriter, read_events
from convoy.job.events.registry import GenerationEnded, GenerationStarted, HardwareSampled
from convoy.job.lineage import Generation, generation_name, read_generation
from convoy.launch.gang.watchers import Watchers
from convoy.launch.monitor.endpoint import MetricsEndpoint
from convoy.launch.monitor.ports import node_port
from convoy.report.fold import fold
from convoy.storage import Store, folder_path, open_store

LOOK_SECONDS = 1.0
"""Between two looks for samples that are to be logged, which the agent's own loop takes in passing."""

RUN = "Overhead/1"
"""In place of Metaflow's pathspec."""


@dataclass(frozen=True)
class Followed:
    """What `Watchers` reads of a gang."""

    config: RunConfig
    store: Store
    generation: Generation


def main() -> None:
    adopt_orphans()  # so that the CPU time of what a tracker leaves behind counts
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for what the product prints
    assignment = Assignment.model_validate_json(sys.stdin.readline())
    node, store = node_of(assignment), open_store(assignment.job_uri)
    generation = read_generation(store, generation_name(assignment.generation))
    log = EventWriter(store, generation.generation, node.index)
    log.append(GenerationStarted(run=RUN, nodes=node.nodes, world_size=node.world_size, tiers=[store.uri]))
    ordered_to_end = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ordered_to_end.set()), daemon=True).start()
    with ExitStack() as stack:
        sampler = stack.enter_context(HardwareSampler(node, folder_path(assignment.root)))
        endpoint = stack.enter_context(endpoint_of(assignment, node))
        endpoint.watch(sampler)
        watchers = None
        if node.leads:
            endpoint.publish(fold(read_events(store), assignment.config.train.steps))
            watchers = stack.enter_context(watchers_of(assignment, node, store, generation))
        samples = 0
        print(json.dumps({"port": node_port(assignment.config, node)}), file=answers, flush=True)
        while not ordered_to_end.wait(LOOK_SECONDS):
            samples += log_samples(log, sampler.take_events())
        samples += log_samples(log, sampler.take_rest())
        log.append(GenerationEnded(outcome="finished"))
        log.close()
        if watchers is not None:
            watchers.end(GangOutcome(outcome="finished"))
            watchers.join()
        print(json.dumps({"samples": samples}), file=answers, flush=True)
        sys.stdin.readline()  # until it is killed


def node_of(assignment: Assignment) -> Node:
    """Each rank is a node."""
    return Node(
        index=assignment.place.rank,
        nodes=assignment.place.world_size,
        nproc_per_node=1,
        main_host="127.0.0.1",
        run=RUN,
        formation="benchmark",
        attempt=0,
        shares_host=True,
    )


def endpoint_of(assignment: Assignment, node: Node) -> MetricsEndpoint:
    port = node_port(assignment.config, node)
    assert port is not None
    return MetricsEndpoint(port, assignment.job, node.index)


def watchers_of(assignment: Assignment, node: Node, store: Store, generation: Generation) -> Watchers:
    task = Task(assignment.config, assignment.job, assignment.root, assignment.data_id, assignment.fingerprint)
    return Watchers(task, node, Followed(assignment.config, store, generation), f"{RUN}/train/1")


def log_samples(log: EventWriter, events: list[HardwareSampled]) -> int:
    """How many samples the events cover."""
    for event in events:
        log.append(event)
    return sum(event.samples for event in events)


if __name__ == "__main__":
    main()
