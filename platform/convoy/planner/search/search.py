"""The best way to train a model on given machines."""

from dataclasses import dataclass
from typing import NamedTuple

from convoy.config.model import TransformerConfig
from convoy.config.train import TrainConfig
from convoy.model.counts import SAVED_BYTES, parameter_count
from convoy.planner.memory.gpu import RELIABLE_SHARE, Memory, fixed, peak
from convoy.planner.memory.tally import Part
from convoy.planner.search.space import workloads
from convoy.planner.step.calibration import Calibration
from convoy.planner.step.fsdp_units import WIDTH
from convoy.planner.step.step_time import StepTime, step_time
from convoy.planner.workload import Machine, Workload

ALIKE = 0.02
"""Steps that differ by no more than this share are as fast as each other, as far as predictions can tell."""


class Task(NamedTuple):
    """What is to be trained."""

    model: TransformerConfig
    sequence_length: int
    train: TrainConfig
    """Micro batch and recomputation are searched; the rest is as it is."""
    fused: bool = True
    """`optimizer.fused`."""


class Way(NamedTuple):
    """To train it, which can be relied on to fit."""

    job: Workload
    time: StepTime
    memory: Memory


@dataclass
class Line:
    """Workloads that differ in the micro batch alone."""

    may_fit: int
    """So many of them, from the smallest on."""


class Search:
    """Of one task; each step is replayed once, for what it takes depends on the ranks that share a copy of the states,
    not on how many copies there are, nor on how much memory."""

    def __init__(self, task: Task, calibration: Calibration) -> None:
        self._task, self._calibration = task, calibration
        self._parameters = parameter_count(task.model)
        self._known: dict[tuple[object, ...], dict[Part, int]] = {}

    def best(self, machine: Machine, nodes: int) -> Way | None:
        """Of the ways that are about as fast as the fastest: the one that takes least memory. None: none fits. Raises
        ValueError for a GPU of which no time can be told."""
        return min(self.fastest(machine, nodes), key=lambda way: way.memory.share, default=None)

    def fastest(self, machine: Machine, nodes: int) -> list[Way]:
        """Of all ways that fit with a margin, fastest first, those that are as fast as predictions can tell. Raises
        ValueError as `best`."""
        found: list[Way] = []
        for time, job, line, index in self._timed(machine, nodes):
            if found and time.total > (1 + ALIKE) * found[0].time.total:
                break
            if index < line.may_fit:
                needed = self.memory(job)
                if needed.reliable:
                    found.append(Way(job, time, needed))
                else:
                    line.may_fit = index
        return found

    def memory(self, job: Workload) -> Memory:
        """As `memory.memory`."""
        key = (job.parallel, job.shards, job.sequences_per_pass, job.passes > 1, job.train.activation_checkpointing)
        if key not in self._known:
            self._known[key] = peak(job, fused=self._task.fused)
        return Memory.of(self._known[key], fixed(job), int(job.machine.memory_bytes))

    def _timed(self, machine: Machine, nodes: int) -> list[tuple[StepTime, Workload, Line, int]]:
        """All ways of which at least the smallest micro batch may fit, fastest first."""
        found = []
        for jobs in workloads(*self._task[:3], machine, nodes):
            if self._has_room(jobs[0]):
                line = Line(len(jobs))
                found += [(step_time(job, self._calibration), job, line, index) for index, job in enumerate(jobs)]
        return sorted(found, key=lambda timed: timed[0].total)

    def _has_room(self, job: Workload) -> bool:
        return self._least(job) < RELIABLE_SHARE * job.machine.memory_bytes and self.memory(job).reliable

    def _least(self, job: Workload) -> float:
        """Bytes that a rank takes in any case: states, and in a pipeline whole weights and gradients of its stage, and
        what it is handed of all micro batches of a step."""
        whole = self._parameters / job.parallel.shared_by
        states = SAVED_BYTES * whole / job.shards
        if job.parallel.pipeline == 1:
            return states
        width, reduced = WIDTH[job.train.param_dtype], WIDTH[job.train.reduce_dtype]
        handed_on = width * job.sequences_per_rank * job.sequence_length * job.model.d_model
        return states + (width + reduced) * whole + handed_on
