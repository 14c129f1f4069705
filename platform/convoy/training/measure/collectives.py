"""What a job's collectives take on its machine: through the groups that training uses, of its own"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh

from convoy.catalog.measured_machine import CollectiveTiming
from convoy.parallel.gloo import AllGather, ReduceScatter
from convoy.parallel.mesh import data_submesh
from convoy.training.measure.machine import (
    MAX_TIMES,
    TIMES,
    max_over_ranks,
    median_seconds_here,
    random_tensor,
    seconds_here,
    slowest_seconds,
)
from convoy.training.process_groups import Ranks

MAX_BYTES = 64 * 2**20
"""Of one collective that is timed."""

SMALL_BYTES = 64 * 2**10

WORK_SECONDS = 0.002
"""Of computation around each collective on a CPU: about as long as the kernel lets it keep a core from gloo's threads,
so that less of it hides what they take from it."""

CALLS = {"cpu": 6, "cuda": 10}
"""In a row: a GPU's are started ahead, and the wait at the end is shared by them. On a CPU another rank is slower
each time: for the slowest of a short row is waited longer than in a step, which has many of them."""

_WORK_ELEMENTS = 2**18


def collective_timings(
    block_elements: int, dtype: torch.dtype, reduce_dtype: torch.dtype, ranks: Ranks, seconds: float
) -> tuple[CollectiveTiming | None, CollectiveTiming | None, CollectiveTiming | None]:
    """Of all-gathers, reduce-scatters and all-reduces; None: of what the job has no group. All ranks call it alike.

    block_elements: elements of a transformer block. dtype: of weights; reduce_dtype: of gradients. seconds: of all.
    """
    mesh = data_submesh(ranks.mesh)
    shards = _shared_group(mesh, mesh.ndim - 1)
    copies = _shared_group(mesh, 0) if mesh.ndim > 1 else None
    kinds: dict[str, tuple[MakeCollective, int, torch.dtype, dist.ProcessGroup]] = {}
    if shards is not None:
        kinds = {
            "gather": (_make_all_gather, block_elements, dtype, shards),
            "reduce": (_make_reduce_scatter, block_elements, reduce_dtype, shards),
        }
    if copies is not None:
        kinds["all_reduce"] = (_make_all_reduce, block_elements // mesh.size(mesh.ndim - 1), reduce_dtype, copies)
    if not kinds:
        return None, None, None
    max_seconds = seconds / (4 * TIMES * len(kinds))
    sent = [one for kind in kinds.values() for one in _small_and_large_call(*kind, ranks, max_seconds)]
    took = _added_seconds([call for _, call in sent], ranks, seconds)
    points = iter([(size, seconds) for (size, _), seconds in zip(sent, took, strict=True)])
    measured = {name: _fit_timing(next(points), next(points), kind[-1].size()) for name, kind in kinds.items()}
    return measured.get("gather"), measured.get("reduce"), measured.get("all_reduce")


def _fit_timing(small: tuple[float, float], large: tuple[float, float], ranks: int) -> CollectiveTiming:
    """small, large: bytes and seconds."""
    start, per_byte = fit_time_line(small, large)
    return CollectiveTiming(latency_seconds=start, bytes_per_second=1 / per_byte, ranks=ranks)


def _shared_group(mesh: DeviceMesh, dimension: int) -> dist.ProcessGroup | None:
    return mesh.get_group(dimension) if mesh.size(dimension) > 1 else None


MakeCollective = Callable[[int, torch.dtype, dist.ProcessGroup, Ranks], Callable[[], object]]


def _small_and_large_call(
    make: MakeCollective, elements: int, dtype: torch.dtype, group: dist.ProcessGroup, ranks: Ranks, max_seconds: float
) -> tuple[tuple[float, Callable[[], object]], tuple[float, Callable[[], object]]]:
    """Bytes and call of a small collective and of one that is as large as wanted, unless it takes over `max_seconds`.

    make: a collective on a whole tensor of so many elements, a multiple of the group's ranks.
    """

    def sized_call(size: float) -> tuple[float, Callable[[], object]]:
        count = max(1, int(size) // (dtype.itemsize * group.size())) * group.size()
        return float(count * dtype.itemsize), make(count, dtype, group, ranks)

    wanted = min(float(elements * dtype.itemsize), MAX_BYTES)
    small = sized_call(min(SMALL_BYTES, wanted / 4))
    return small, sized_call(_affordable_bytes(small[0], wanted, lambda size: sized_call(size)[1], ranks, max_seconds))


def _affordable_bytes(
    size: float, wanted: float, make: Callable[[float], Callable[[], object]], ranks: Ranks, max_seconds: float
) -> float:
    """Bytes of a collective, as many as wanted unless the network would take longer than `max_seconds` for them; at
    least twice as many as `size`. All ranks judge alike, by the slowest, and by the shortest of some times: what is not
    tried is extrapolated from smaller ones, and errors grow with it."""
    tried = 2 * size
    while tried < wanted:
        call, larger = make(tried), min(4 * tried, wanted)
        if min(slowest_seconds(call, ranks) for _ in range(TIMES)) * larger / tried > max_seconds:
            return tried
        tried = larger
    return max(wanted, 2 * size)


def _make_all_gather(count: int, dtype: torch.dtype, group: dist.ProcessGroup, ranks: Ranks) -> Callable[[], object]:
    """As `parallel/fsdp.py` has it: on a CPU nothing runs next to the copy from where it was gathered to where weights
    are used, which one rank alone does not make."""
    whole = torch.zeros(count, dtype=dtype, device=ranks.device)
    part = torch.zeros(count // group.size(), dtype=dtype, device=ranks.device)
    if ranks.device.type == "cuda":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    gather: Callable[..., object] = AllGather() if ranks.across_hosts else dist.all_gather_into_tensor

    def gather_and_copy() -> None:
        buffer = torch.empty_like(whole)
        gather(buffer, part, group)
        whole.copy_(buffer)

    return gather_and_copy


def _make_reduce_scatter(
    count: int, dtype: torch.dtype, group: dist.ProcessGroup, ranks: Ranks
) -> Callable[[], object]:
    """As `parallel/fsdp.py` has it."""
    whole = torch.zeros(count, dtype=dtype, device=ranks.device)
    part = torch.zeros(count // group.size(), dtype=dtype, device=ranks.device)
    if ranks.device.type == "cpu":
        exchange = ReduceScatter(across_hosts=ranks.across_hosts)
        return lambda: exchange(part, whole, group, dist.ReduceOp.SUM)
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


def _make_all_reduce(count: int, dtype: torch.dtype, group: dist.ProcessGroup, ranks: Ranks) -> Callable[[], object]:
    whole = torch.zeros(count, dtype=dtype, device=ranks.device)
    return lambda: dist.all_reduce(whole, group=group)


def _added_seconds(collectives: Sequence[Callable[[], object]], ranks: Ranks, seconds: float) -> list[float]:
    """Seconds that each collective adds to the computation around it, agreed by all ranks: the median over rounds of
    what a row with it takes longer than one without, each of the slowest rank.

    On a CPU the threads of gloo share a core with computation, and who comes out of a collective first goes on
    computing while they still have to send: what that takes, collectives in a row do not show. Rows end with
    computation, in which what is still sent is seen. Where something else disturbs them more than that, it is what the
    collective takes in a row: it cannot be less. Of a GPU they are rows of collectives alone, less what the wait at the
    end of none takes, and at least half of the row.

    All collectives take turns in each round, for a time and not so many times: what disturbs the machine for a while is
    in few rounds of each, and not in all of one.
    """
    rows = _rows_to_time(collectives, ranks)

    def time_rows() -> list[float]:
        return [seconds_here(row, ranks) for row in rows]

    time_rows()  # the first of anything takes longer
    began, rounds = time.perf_counter(), [time_rows() for _ in range(TIMES)]
    while max_over_ranks(time.perf_counter() - began, ranks) < seconds and len(rounds) < MAX_TIMES:
        rounds.append(time_rows())
    times = torch.tensor(rounds, dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX, group=ranks.control)
    alone, between, in_a_row = times.split([1, len(collectives), len(rows) - 1 - len(collectives)], dim=1)
    longer = (between - alone).quantile(0.5, dim=0)
    least = between.quantile(0.5, dim=0) / 2 if ranks.device.type == "cuda" else in_a_row.quantile(0.5, dim=0)
    return (torch.maximum(longer, least) / CALLS[ranks.device.type]).tolist()


def _rows_to_time(collectives: Sequence[Callable[[], object]], ranks: Ranks) -> list[Callable[[], object]]:
    """One of computation, each collective between computations, and on a CPU each by itself."""
    work, calls = _make_computation(ranks), CALLS[ranks.device.type]

    def run_computation() -> None:
        for _ in range(calls + 1):
            work()

    def run_between(call: Callable[[], object]) -> None:
        for _ in range(calls):
            work()
            call()
        work()

    def run_in_a_row(call: Callable[[], object]) -> None:
        for _ in range(calls):
            call()

    rows: list[Callable[[], object]] = [run_computation, *(partial(run_between, call) for call in collectives)]
    return rows if ranks.device.type == "cuda" else rows + [partial(run_in_a_row, call) for call in collectives]


def _make_computation(ranks: Ranks) -> Callable[[], object]:
    """Computation for a while, as between the collectives of a step, whose results fill the caches; none on a GPU."""
    if ranks.device.type == "cuda":
        return lambda: None
    x = random_tensor(ranks.device, torch.float32, _WORK_ELEMENTS)
    count = max(1, round(WORK_SECONDS / median_seconds_here(lambda: F.gelu(x), ranks, WORK_SECONDS)))
    return lambda: [F.gelu(x) for _ in range(count)]


RESOLVED = 0.05
"""Share of the larger size's seconds that its slope makes up at least: less cannot be distinguished from
noise, and with none at all still larger sizes would take no time."""


def fit_time_line(small: tuple[float, float], large: tuple[float, float]) -> tuple[float, float]:
    """Start and slope of the line through (size, seconds) of two sizes.

    The larger one, which is as large as what is asked for, is on it, however the smaller one was disturbed. The start
    is never below 0, and no more than either time; the slope never below RESOLVED of the larger one's rate. Both follow
    the times without a jump. Raises ValueError for sizes that do not grow, or a time that is not above 0.
    """
    (size, seconds), (largest, most) = small, large
    if not 0 <= size < largest or min(seconds, most) <= 0:
        raise ValueError(f"{[small, large]}: must be times above 0 of two sizes, the smaller one first")
    rise = (most - seconds) / (largest - size) * largest
    share = min(max(rise, RESOLVED * most), most)
    return most - share, share / largest
