"""Exchanges: collectives of the backend, or by a schedule, on buffers with a known result, to be timed and checked."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from convoy.config.network import IN_AND_OUT_OF_PLACE, NetworkDtype, Operation
from convoy.network.collectives.exact import SPLIT, ExactProblem, count_wrong
from convoy.network.collectives.schedule import ROOT, Schedule
from convoy.network.collectives.schedule_runner import ScheduleRunner, layout_of

DTYPES: dict[NetworkDtype, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
    "int32": torch.int32,
}

IN_PLACE: frozenset[Operation] = frozenset({"all_reduce", "reduce", "broadcast"})
"""Operations that torch offers in place only."""


NEVER = -1
"""A value that no element of a result has."""


@dataclass(frozen=True)
class Exchange:
    """A collective on this rank, by the backend or by a schedule, with its buffers."""

    problem: ExactProblem
    fill: Callable[[], object]
    """Write this rank's contribution into its buffers."""
    run: Callable[[], object]
    """Carry out the collective once. It returns when this rank's part is done, or on GPUs enqueued."""
    result: torch.Tensor
    """The view of a buffer in which this rank finds its result."""

    def check(self) -> int:
        """Carry out the collective once on fresh contributions; returns the number of wrong elements on this rank."""
        self.result.fill_(NEVER)  # or what an earlier call left there might be taken for this one's result
        self.fill()
        self.run()
        return count_wrong(self.result, self.problem.expected())


def element_count(operation: Operation, size: int, ranks: int, dtype: torch.dtype) -> int:
    """Number of elements of the whole buffer of `size` bytes.

    As in nccl-tests it is rounded down, to equal parts if the buffer has one for each rank. It is at least one element,
    or one for each part.
    """
    elements = max(1, size // dtype.itemsize)
    return max(1, elements // ranks) * ranks if operation in SPLIT else elements


def backend_exchange(problem: ExactProblem, group: dist.ProcessGroup | None, *, in_place: bool = False) -> Exchange:
    """The collective of the backend. group: all ranks; None: torch's default group. in_place: input and output share
    memory; it affects the operations in IN_AND_OUT_OF_PLACE only."""
    in_place = in_place and problem.operation in IN_AND_OUT_OF_PLACE
    whole = torch.zeros(problem.total, dtype=problem.dtype, device=problem.device)
    own, ranks, first = problem.part, problem.ranks, problem.rank == ROOT
    if problem.operation in IN_PLACE:
        reduction = {"all_reduce": lambda: dist.all_reduce(whole, group=group)}
        reduction["reduce"] = lambda: dist.reduce(whole, group=group, group_dst=ROOT)
        reduction["broadcast"] = lambda: dist.broadcast(whole, group=group, group_src=ROOT)
        return Exchange(problem, _filler(problem, whole), reduction[problem.operation], whole)
    part = whole[own] if in_place else torch.zeros_like(whole[own])
    of_part, of_whole = _filler(problem, part, own), _filler(problem, whole)
    if problem.operation == "all_gather":
        return Exchange(problem, of_part, lambda: dist.all_gather_into_tensor(whole, part, group=group), whole)
    if problem.operation == "reduce_scatter":
        return Exchange(problem, of_whole, lambda: dist.reduce_scatter_tensor(part, whole, group=group), part)
    parts = list(whole.chunk(ranks)) if first else None
    if problem.operation == "gather":
        return Exchange(problem, of_part, lambda: dist.gather(part, parts, group=group, group_dst=ROOT), whole)
    if problem.operation == "scatter":
        return Exchange(problem, of_whole, lambda: dist.scatter(part, parts, group=group, group_src=ROOT), part)
    received = torch.zeros_like(whole)
    return Exchange(problem, of_whole, lambda: dist.all_to_all_single(received, whole, group=group), received)


def scheduled_exchange(problem: ExactProblem, schedule: Schedule, group: dist.ProcessGroup | None) -> Exchange:
    """The collective by a schedule, in one buffer. group: the ranks of the schedule; None: torch's default group."""
    received = problem.total if problem.operation == "all_to_all" else 0
    buffer = torch.zeros(problem.total + received, dtype=problem.dtype, device=problem.device)
    whole, parts = buffer[: problem.total], schedule.chunks if problem.operation in SPLIT else 1
    layout = layout_of(len(buffer), schedule.chunks, problem.dtype.itemsize, parts=parts)
    runner = ScheduleRunner(schedule, problem.rank, buffer, layout, group)
    own, operation = problem.part, problem.operation

    def fill() -> None:
        buffer.zero_()
        if operation in ("all_gather", "gather"):
            whole[own] = problem.contribution(problem.rank, own)
        elif operation not in ("broadcast", "scatter") or problem.rank == ROOT:
            whole.copy_(problem.contribution(problem.rank))

    result = {"reduce_scatter": whole[own], "scatter": whole[own], "all_to_all": buffer[problem.total :]}
    return Exchange(problem, fill, runner.run, result.get(operation, whole))


def _filler(problem: ExactProblem, buffer: torch.Tensor, where: slice | None = None) -> Callable[[], object]:
    return lambda: buffer.copy_(problem.contribution(problem.rank, where))
