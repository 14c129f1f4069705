"""Collectives as exchanges, of the backend or by a schedule: a call to be timed, on buffers whose result is known
exactly."""

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
"""No element of any result."""


@dataclass(frozen=True)
class Exchange:
    """One way of carrying out a collective, on this rank."""

    problem: ExactProblem
    fill: Callable[[], object]
    """Write this rank's contribution into its buffers."""
    run: Callable[[], object]
    """Carry it out once. It returns when this rank's part is done, or on GPUs enqueued."""
    result: torch.Tensor
    """Where this rank's part of the result is."""

    def check(self) -> int:
        """Carry it out once on new contributions, and count the wrong elements that this rank then holds."""
        self.result.fill_(NEVER)  # or what an earlier call left there might be taken for this one's result
        self.fill()
        self.run()
        return count_wrong(self.result, self.problem.expected())


def element_count(operation: Operation, size: int, ranks: int, dtype: torch.dtype) -> int:
    """Elements of the whole buffer of `size` bytes: rounded down, to equal parts where each rank has one, as nccl-tests
    does, but at least one element, or one for each part."""
    elements = max(1, size // dtype.itemsize)
    return max(1, elements // ranks) * ranks if operation in SPLIT else elements


def backend_exchange(problem: ExactProblem, group: dist.ProcessGroup | None, *, in_place: bool = False) -> Exchange:
    """The backend's own collective. group: of all ranks; None: torch's default group. in_place: see
    IN_AND_OUT_OF_PLACE; other operations take no notice of it."""
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
    """A schedule of the collective, in one buffer. group: of its ranks; None: torch's default group."""
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
