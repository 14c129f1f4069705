"""A short look at the machine once it is warm: the rates at which this job's own sizes are computed and sent, from
which the planner tells how long a step takes where the catalog knows nothing.

All ranks do the same at once, so that what they share (memory, caches, network) is shared as in training.
"""

import math
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh

from convoy.catalog.gpus import rented_gpu
from convoy.catalog.instances import instance, instance_names
from convoy.catalog.measured import Line, MeasuredMachine
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.model.counts import parameter_count
from convoy.parallel.fsdp import DTYPES
from convoy.parallel.gloo import ExchangeAndAdd, Gather
from convoy.parallel.mesh import data_place, sharding
from convoy.planner.machine import rented_type
from convoy.stats.line import time_line
from convoy.training.measure import device_name
from convoy.training.ranks import Ranks

MOST_TOKENS = 4096
"""Of a pass, in one measurement: on more of them rates hardly change."""

MOST_BYTES = 64 * 2**20
"""Of one collective that is timed."""

SMALL_BYTES = 64 * 2**10

TIMES = 5
"""At least so often is each thing done: the middle of fewer times may have been disturbed."""

MOST_TIMES = 200

WORK_SECONDS = 0.002
"""Of computation around each collective on a CPU: about as long as the kernel lets it keep a core from gloo's threads,
so that less of it hides what they take from it."""

LINES_SECONDS = 0.5
"""At least, for all lines together: what computation adds to a collective varies by as much as it is."""

CALLS = {"cpu": 2, "cuda": 10}
"""In a row: a GPU's are started ahead, and the wait at the end is shared by them."""

_WORK_ELEMENTS = 2**18

CHAIN = 100
"""Small operations in a row, whose graph is one backward pass."""


def probe(config: RunConfig, ranks: Ranks, seconds: float) -> MeasuredMachine | None:
    """What this rank measured, each thing for about a quarter of `seconds`, and collectives for LINES_SECONDS at least.

    None where nobody needs it, for the catalog has the GPUs that were rented, and where no sizes are known, of a custom
    model. All ranks call it alike.
    """
    if not isinstance(config.model, TransformerConfig) or _catalogued(config):
        return None
    sizes, each = _Sizes(config, config.model, ranks), seconds / 4
    gather, reduce, all_reduce = _lines(sizes, ranks, max(2 * each, LINES_SECONDS))
    return MeasuredMachine(
        device=device_name(ranks.device),
        kind="cuda" if ranks.device.type == "cuda" else "cpu",
        dtype=config.train.param_dtype,
        threads=torch.get_num_threads(),
        ranks=ranks.place.world_size,
        matmul_flops=_matmul(sizes, ranks, each),
        attention_flops=_attention(sizes, ranks, each),
        memory_bytes_per_second=_memory(sizes, ranks, each),
        operation_seconds=_operation(ranks, each),
        gather=gather,
        reduce=reduce,
        all_reduce=all_reduce,
    )


def _catalogued(config: RunConfig) -> bool:
    instance_type = rented_type(config)
    if instance_type is None or instance_type not in instance_names():
        return False
    gpu = instance(instance_type).gpu
    return gpu is not None and rented_gpu(gpu.name) is not None


class _Sizes:
    """Of the job's tensors on one rank."""

    def __init__(self, config: RunConfig, model: TransformerConfig, ranks: Ranks) -> None:
        parts = data_place(ranks.mesh)[1]
        each = math.ceil(config.train.global_batch / parts)
        passes = math.ceil(each / config.train.micro_batch)
        self.length = config.data.sequence_length
        self.sequences = max(1, min(math.ceil(each / passes), MOST_TOKENS // self.length))
        self.tokens = min(self.sequences * self.length, MOST_TOKENS)
        self.width, self.inner = model.d_model, model.ff_width // config.parallel.tensor
        self.heads, self.head_width = max(1, model.n_heads // config.parallel.tensor), model.head_width
        self.fused = config.train.attention == "fused"
        self.dtype, self.reduced = DTYPES[config.train.param_dtype], DTYPES[config.train.reduce_dtype]
        longer = model.model_copy(update={"n_layers": model.n_layers + 1})
        self.block = (parameter_count(longer) - parameter_count(model)) // config.parallel.tensor


def _matmul(sizes: _Sizes, ranks: Ranks, seconds: float) -> float:
    """Operations/s of the MLP's products, forward and backward: transposed operands have rates of their own."""
    x, gradient = (
        _random(ranks, sizes.dtype, sizes.tokens, sizes.width),
        _random(ranks, sizes.dtype, sizes.tokens, sizes.inner),
    )
    weight = _random(ranks, sizes.dtype, sizes.inner, sizes.width)

    def products() -> None:
        F.linear(x, weight)
        gradient @ weight
        gradient.t() @ x

    return 3 * 2 * sizes.tokens * sizes.width * sizes.inner / _middle(products, ranks, seconds)


def _attention(sizes: _Sizes, ranks: Ranks, seconds: float) -> float | None:
    """Of fused attention, forward and backward: 2 and 5 t S d operations under a causal mask."""
    if not sizes.fused:
        return None
    shape = (sizes.sequences, sizes.heads, sizes.length, sizes.head_width)
    q, k, v = (_random(ranks, sizes.dtype, *shape).requires_grad_() for _ in range(3))
    gradient = _random(ranks, sizes.dtype, *shape)

    def attend() -> None:
        torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), gradient)

    done = 7 * sizes.sequences * sizes.length**2 * sizes.heads * sizes.head_width
    return done / _middle(attend, ranks, seconds)


def _memory(sizes: _Sizes, ranks: Ranks, seconds: float) -> float:
    """Bytes/s of a GELU, which reads and writes each activation once."""
    x = _random(ranks, sizes.dtype, sizes.tokens, sizes.inner)
    return 2 * x.nbytes / _middle(lambda: F.gelu(x), ranks, seconds)


def _operation(ranks: Ranks, seconds: float) -> float:
    """Of one forward operation; its backward counts as two of them, as in the planner's count of kernels."""
    x = torch.ones(16, device=ranks.device, requires_grad=True)

    def chain() -> None:
        y = x
        for _ in range(CHAIN):
            y = y * 1.5
        y.backward(torch.ones_like(y))

    return _middle(chain, ranks, seconds) / (3 * CHAIN)


def _lines(sizes: _Sizes, ranks: Ranks, seconds: float) -> tuple[Line | None, Line | None, Line | None]:
    """Of all-gathers, reduce-scatters and all-reduces, through the groups that training uses. seconds: of all."""
    mesh = sharding(ranks.mesh)
    shards = _group(mesh, mesh.ndim - 1)
    copies = _group(mesh, 0) if mesh.ndim > 1 else None
    each = seconds / max(1, 2 * (shards is not None) + (copies is not None))
    gather = reduce = None
    if shards is not None:
        gather = _line(_gathering, sizes.block, sizes.dtype, shards, ranks, each)
        reduce = _line(_reducing, sizes.block, sizes.reduced, shards, ranks, each)
    if copies is None:
        return gather, reduce, None
    part = sizes.block // mesh.size(mesh.ndim - 1)
    return gather, reduce, _line(_summing, part, sizes.reduced, copies, ranks, each)


def _group(mesh: DeviceMesh, dimension: int) -> dist.ProcessGroup | None:
    return mesh.get_group(dimension) if mesh.size(dimension) > 1 else None


Made = Callable[[int, torch.dtype, dist.ProcessGroup, Ranks], Callable[[], object]]


def _line(
    made: Made, elements: int, dtype: torch.dtype, group: dist.ProcessGroup, ranks: Ranks, seconds: float
) -> Line:
    """made: a collective on a whole tensor of so many elements, a multiple of the group's ranks."""

    def sized(size: float) -> tuple[float, Callable[[], object]]:
        count = max(1, int(size) // (dtype.itemsize * group.size())) * group.size()
        return float(count * dtype.itemsize), made(count, dtype, group, ranks)

    wanted = min(float(elements * dtype.itemsize), MOST_BYTES)
    small, call = sized(min(SMALL_BYTES, wanted / 4))
    latency = _together(call, ranks, seconds / 3)
    large, call = sized(_largest(small, wanted, lambda size: sized(size)[1], ranks, seconds / (4 * TIMES)))
    start, per_byte = time_line([(small, latency), (large, _together(call, ranks, 2 * seconds / 3))])
    return Line(latency_seconds=start, bytes_per_second=1 / per_byte, ranks=group.size())


def _largest(
    size: float, wanted: float, made: Callable[[float], Callable[[], object]], ranks: Ranks, most: float
) -> float:
    """Bytes of a collective, as many as wanted unless the network would take longer than `most` seconds for them; at
    least twice as many as `size`. All ranks judge alike, by the slowest."""
    tried = 2 * size
    while tried < wanted:
        call, larger = made(tried), min(4 * tried, wanted)
        call()
        if _once(call, ranks) * larger / tried > most:
            return tried
        tried = larger
    return max(wanted, 2 * size)


def _gathering(count: int, dtype: torch.dtype, group: dist.ProcessGroup, ranks: Ranks) -> Callable[[], object]:
    """As `parallel/fsdp.py` has it: on a CPU nothing runs beside the copy from where it was gathered to where weights
    are used, which one rank alone does not make."""
    whole = torch.zeros(count, dtype=dtype, device=ranks.device)
    part = torch.zeros(count // group.size(), dtype=dtype, device=ranks.device)
    if ranks.device.type == "cuda":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    gather: Callable[..., object] = Gather() if ranks.across_hosts else dist.all_gather_into_tensor

    def gathered() -> None:
        buffer = torch.empty_like(whole)
        gather(buffer, part, group)
        whole.copy_(buffer)

    return gathered


def _reducing(count: int, dtype: torch.dtype, group: dist.ProcessGroup, ranks: Ranks) -> Callable[[], object]:
    """As `parallel/fsdp.py` has it."""
    whole = torch.zeros(count, dtype=dtype, device=ranks.device)
    part = torch.zeros(count // group.size(), dtype=dtype, device=ranks.device)
    if ranks.device.type == "cpu":
        exchange = ExchangeAndAdd(across_hosts=ranks.across_hosts)
        return lambda: exchange(part, whole, group, dist.ReduceOp.SUM)
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


def _summing(count: int, dtype: torch.dtype, group: dist.ProcessGroup, ranks: Ranks) -> Callable[[], object]:
    whole = torch.zeros(count, dtype=dtype, device=ranks.device)
    return lambda: dist.all_reduce(whole, group=group)


def _middle(call: Callable[[], object], ranks: Ranks, seconds: float) -> float:
    """Median seconds of one call on this rank, while every rank does the same."""
    call()
    dist.barrier(group=ranks.control)
    times: list[float] = []
    ends = time.perf_counter() + seconds
    while len(times) < TIMES or (time.perf_counter() < ends and len(times) < MOST_TIMES):
        times.append(_seconds(call, ranks))
    return statistics.median(times)


def _together(call: Callable[[], object], ranks: Ranks, seconds: float) -> float:
    """Seconds that a collective adds to the computation around it, agreed by all ranks: the median of what rows with it
    take longer than rows without, each of the slowest rank.

    On a CPU the threads of gloo share a core with computation, and who comes out of a collective first goes on
    computing while they still have to send: what that takes, collectives in a row do not show. A GPU is waited for.
    Rows take turns, so that both see the same machine, and end with computation, in which what is still sent is seen.
    Where something else disturbs them more than that, it is what the collective takes in a row: it cannot be less.
    """
    work, calls = _work(ranks), CALLS[ranks.device.type]

    def beside() -> None:
        for _ in range(calls):
            work()
            call()
        work()

    def alone() -> None:
        for _ in range(calls + 1):
            work()

    once = _once(alone, ranks) + min(_once(beside, ranks) for _ in range(2))
    count = max(TIMES, min(MOST_TIMES, int(seconds / once)))
    rows = [(_timed(alone, ranks), _timed(beside, ranks)) for _ in range(count)]
    slowest = torch.tensor(rows, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=ranks.control)
    longer = statistics.median((slowest[:, 1] - slowest[:, 0]).tolist())
    in_a_row = statistics.median(_once(lambda: [call() for _ in range(TIMES)], ranks) for _ in range(3))
    return max(longer / calls, in_a_row / TIMES)


def _work(ranks: Ranks) -> Callable[[], object]:
    """Computation for a while, as between the collectives of a step, whose results fill the caches; none on a GPU."""
    if ranks.device.type == "cuda":
        return lambda: None
    x = _random(ranks, torch.float32, _WORK_ELEMENTS)
    count = max(1, round(WORK_SECONDS / _middle(lambda: F.gelu(x), ranks, WORK_SECONDS)))
    return lambda: [F.gelu(x) for _ in range(count)]


def _once(call: Callable[[], object], ranks: Ranks) -> float:
    """Seconds of a call, of the slowest rank, on all ranks."""
    return _most(_timed(call, ranks), ranks)


def _timed(call: Callable[[], object], ranks: Ranks) -> float:
    """Seconds of a call that all ranks begin together, on this one."""
    _synchronize(ranks.device)
    dist.barrier(group=ranks.control)
    return _seconds(call, ranks)


def _seconds(call: Callable[[], object], ranks: Ranks) -> float:
    _synchronize(ranks.device)
    began = time.perf_counter()
    call()
    _synchronize(ranks.device)
    return time.perf_counter() - began


def _most(value: float, ranks: Ranks) -> float:
    """Over all ranks."""
    told = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(told, op=dist.ReduceOp.MAX, group=ranks.control)
    return float(told)


def _random(ranks: Ranks, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    noise = torch.Generator(ranks.device).manual_seed(0)  # of its own: the model's is not touched
    return torch.randn(shape, device=ranks.device, generator=noise, dtype=dtype)  # in fp32 it would take memory twice


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
