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
"""Steps that differ by no more than this share are equally fast, as far as predictions can tell."""


class Task(NamedTuple):
    """What is to be trained. Micro batch and recomputation of `train` are searched."""

    model: TransformerConfig
    sequence_length: int
    train: TrainConfig
    fused: bool = True
    """`optimizer.fused`."""


class Way(NamedTuple):
    """A way to train it that reliably fits."""

    job: Workload
    time: StepTime
    memory: Memory


@dataclass
class _Line:
    """Workloads that differ in the micro batch alone: memory grows along them."""

    may_fit: int
    """Number of them, from the smallest on."""


class Search:
    """Searches for one task. Each step is replayed once: its memory depends on the ranks that share a copy of the
    state, not on the number of copies, nor on the size of memory."""

    def __init__(self, task: Task, calibration: Calibration) -> None:
        self._task, self._calibration = task, calibration
        self._parameters = parameter_count(task.model)
        self._peaks: dict[tuple[object, ...], dict[Part, int]] = {}

    def best(self, machine: Machine, nodes: int) -> Way | None:
        """The way that needs least memory among those about as fast as the fastest. None: none fits. Raises ValueError
        for a GPU whose time cannot be planned."""
        return min(self.fastest(machine, nodes), key=lambda way: way.memory.share, default=None)

    def fastest(self, machine: Machine, nodes: int) -> list[Way]:
        """Ways that fit with a margin and are about as fast as the fastest, fastest first. Raises ValueError as
        `best`."""
        ways: list[Way] = []
        for time, job, line, index in self._timed(machine, nodes):
            if ways and time.total > (1 + ALIKE) * ways[0].time.total:
                break
            if index < line.may_fit:
                needed = self.memory(job)
                if needed.reliable:
                    ways.append(Way(job, time, needed))
                else:
                    line.may_fit = index
        return ways

    def memory(self, job: Workload) -> Memory:
        """As `gpu.memory`."""
        key = (job.parallel, job.shards, job.sequences_per_pass, job.passes > 1, job.train.activation_checkpointing)
        if key not in self._peaks:
            self._peaks[key] = peak(job, fused=self._task.fused)
        return Memory.of(self._peaks[key], fixed(job), int(job.machine.memory_bytes))

    def _timed(self, machine: Machine, nodes: int) -> list[tuple[StepTime, Workload, _Line, int]]:
        """All ways whose smallest micro batch may fit, fastest first."""
        timed = []
        for jobs in workloads(*self._task[:3], machine, nodes):
            if self._has_room(jobs[0]):
                line = _Line(len(jobs))
                timed += [(step_time(job, self._calibration), job, line, index) for index, job in enumerate(jobs)]
        return sorted(timed, key=lambda each: each[0].total)

    def _has_room(self, job: Workload) -> bool:
        return self._least_bytes(job) < RELIABLE_SHARE * job.machine.memory_bytes and self.memory(job).reliable

    def _least_bytes(self, job: Workload) -> float:
        """A lower bound that needs no replay: the state, and in a pipeline whole weights and gradients of the stage and
        the activations handed to it for all micro batches of a step."""
        whole = self._parameters / job.parallel.shared_by
        state = SAVED_BYTES * whole / job.shards
        if job.parallel.pipeline == 1:
            return state
        width, reduced = WIDTH[job.train.param_dtype], WIDTH[job.train.reduce_dtype]
        handed_on = width * job.sequences_per_rank * job.sequence_length * job.model.d_model
        return state + (width + reduced) * whole + handed_on
