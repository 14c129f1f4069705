"""The best way to train a model on given machines, and the ways among which it is searched."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.train import TrainConfig
from convoy.model.counts import SAVED_BYTES, parameter_count
from convoy.planner.memory.accumulator import Part
from convoy.planner.memory.rank import RELIABLE_SHARE, Memory, fixed_bytes, peak_bytes_by_part
from convoy.planner.step.calibration import Calibration
from convoy.planner.step.fsdp_units import WIDTH
from convoy.planner.step.step_time import StepTime, step_time
from convoy.planner.workload import Machine, Workload

TENSOR = (2, 4, 8)
"""Ranks of one machine that share products."""

SHARD_NODES = (2, 4, 8)
"""Machines of a sharding group of `hsdp`, other than one."""

STAGES = (2, 4, 8, 16)
"""Stages of a pipeline."""

MAX_MICRO_BATCH = 64

ALIKE = 0.02
"""Steps that differ by no more than this share are equally fast, as far as predictions can distinguish."""


class TrainingSpec(NamedTuple):
    """What is to be trained. Micro batch and recomputation of `train` are searched."""

    model: TransformerConfig
    sequence_length: int
    train: TrainConfig
    fused: bool = True
    """`optimizer.fused`."""


class FittingPlan(NamedTuple):
    """A way to train it that reliably fits."""

    job: Workload
    time: StepTime
    memory: Memory


@dataclass
class _MicroBatchSeries:
    """Workloads that differ in the micro batch alone: memory grows along them."""

    may_fit: int
    """Number of them, from the smallest on."""


class StrategySearch:
    """Searches for one task. Each step is replayed once: its memory depends on the ranks that share a copy of the
    state, not on the number of copies, nor on the size of memory."""

    def __init__(self, spec: TrainingSpec, calibration: Calibration) -> None:
        self._spec, self._calibration = spec, calibration
        self._parameters = parameter_count(spec.model)
        self._peaks: dict[tuple[object, ...], dict[Part, int]] = {}

    def best(self, machine: Machine, nodes: int) -> FittingPlan | None:
        """The way that needs least memory among those about as fast as the fastest. None: none fits. Raises ValueError
        for a GPU whose time cannot be planned."""
        return min(self.fastest(machine, nodes), key=lambda way: way.memory.share, default=None)

    def fastest(self, machine: Machine, nodes: int) -> list[FittingPlan]:
        """Ways that fit with a margin and are about as fast as the fastest, fastest first. Raises ValueError as
        `best`."""
        ways: list[FittingPlan] = []
        for time, job, line, index in self._timed_workloads(machine, nodes):
            if ways and time.total > (1 + ALIKE) * ways[0].time.total:
                break
            if index < line.may_fit:
                needed = self.memory(job)
                if needed.reliable:
                    ways.append(FittingPlan(job, time, needed))
                else:
                    line.may_fit = index
        return ways

    def memory(self, job: Workload) -> Memory:
        """As `rank.rank_memory`."""
        key = (job.parallel, job.shards, job.sequences_per_pass, job.passes > 1, job.train.activation_checkpointing)
        if key not in self._peaks:
            self._peaks[key] = peak_bytes_by_part(job, fused=self._spec.fused)
        return Memory.of(self._peaks[key], fixed_bytes(job), int(job.machine.memory_bytes))

    def _timed_workloads(self, machine: Machine, nodes: int) -> list[tuple[StepTime, Workload, _MicroBatchSeries, int]]:
        """All ways whose smallest micro batch may fit, fastest first."""
        timed = []
        for jobs in _workloads(self._spec, machine, nodes):
            if self._has_room(jobs[0]):
                line = _MicroBatchSeries(len(jobs))
                timed += [(step_time(job, self._calibration), job, line, index) for index, job in enumerate(jobs)]
        return sorted(timed, key=lambda each: each[0].total)

    def _has_room(self, job: Workload) -> bool:
        return self._least_bytes(job) < RELIABLE_SHARE * job.machine.memory_bytes and self.memory(job).reliable

    def _least_bytes(self, job: Workload) -> float:
        """A lower bound that needs no replay: the state, and in a pipeline whole weights and gradients of the stage and
        the activations handed to it for all micro batches of a step."""
        whole = self._parameters / job.parallel.ranks_per_sample
        state = SAVED_BYTES * whole / job.shards
        if job.parallel.pipeline == 1:
            return state
        width, reduced = WIDTH[job.train.param_dtype], WIDTH[job.train.reduce_dtype]
        handed_on = width * job.sequences_per_rank * job.sequence_length * job.model.d_model
        return state + (width + reduced) * whole + handed_on


def _workloads(spec: TrainingSpec, machine: Machine, nodes: int) -> Iterator[list[Workload]]:
    """Each list is one way to spread the model and to recompute, by micro batch from the smallest on: memory grows
    along it. Blocks are compiled as far as a way allows it. None where there are more ranks than sequences."""
    for parallel in _parallel_configs(spec.model, machine, nodes):
        for recomputed in ("none", "selective", "full"):
            if parallel.wrap == "linear" and recomputed == "selective":
                continue
            compiled = spec.train.compile and _can_compile(parallel)
            train = spec.train.model_copy(update={"activation_checkpointing": recomputed, "compile": compiled})
            sized = list(_micro_batches(Workload(spec.model, spec.sequence_length, train, parallel, machine, nodes)))
            if sized:
                yield sized


def _micro_batches(whole: Workload) -> Iterator[Workload]:
    """Micro batches that cut a step into equal passes; where ranks cannot have equally many sequences, all that make
    another number of passes, as training evens them out. Where gradients are kept whole between passes there must be
    several, and in a pipeline one for each stage."""
    train, parallel = whole.train, whole.parallel
    if train.global_batch < whole.data_ranks:
        return
    count, even = whole.sequences_per_rank, train.global_batch % whole.data_ranks == 0
    for size in range(1, min(count, MAX_MICRO_BATCH) + 1):
        passes = math.ceil(count / size)
        cuts = count % size == 0 if even else size == math.ceil(count / passes)
        if not cuts or (passes == 1 and not parallel.reduce_every_pass) or passes < parallel.pipeline:
            continue
        yield replace(whole, train=train.model_copy(update={"micro_batch": size}))


def _parallel_configs(model: TransformerConfig, machine: Machine, nodes: int) -> Iterator[ParallelConfig]:
    for strategy in _strategies(model, machine, nodes):
        for wrap in ("block", "linear"):
            for every in (True,) if strategy.get("pipeline") else (True, False):
                yield ParallelConfig.model_validate({**strategy, "wrap": wrap, "reduce_every_pass": every})


def _strategies(model: TransformerConfig, machine: Machine, nodes: int) -> Iterator[dict[str, Any]]:
    ranks = machine.ranks
    for reshard in (True, False):
        yield {"reshard_after_forward": reshard}
        if nodes > 1:
            yield {"strategy": "hsdp", "shard_size": ranks, "reshard_after_forward": reshard}
    for count in SHARD_NODES:
        if nodes > count and nodes % count == 0:
            yield {"strategy": "hsdp", "shard_size": count * ranks}
    if nodes * ranks > 1:
        yield {"strategy": "ddp"}
    tensors = [shared for shared in TENSOR if ranks % shared == 0 and _splits_evenly(model, shared)]
    yield from ({"tensor": shared} for shared in tensors)
    for stages in STAGES if _allows_pipeline(model) else ():
        for shared in (1, *tensors):
            if stages <= model.n_layers and nodes * ranks % (shared * stages) == 0:
                yield {"pipeline": stages, "tensor": shared}


def _splits_evenly(model: TransformerConfig, ranks: int) -> bool:
    return not any(size % ranks for size in model.tensor_split_sizes.values())


def _allows_pipeline(model: TransformerConfig) -> bool:
    """Embedding and head are on two stages, and each fills its own weights."""
    return not model.tied_embeddings and model.init_from is None


def _can_compile(parallel: ParallelConfig) -> bool:
    """With `tensor` and `pipeline` it is refused, and a block that is gathered matrix by matrix breaks at each
    gather."""
    return parallel.ranks_per_sample == 1 and parallel.wrap == "block"
