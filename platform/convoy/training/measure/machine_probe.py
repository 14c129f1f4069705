"""A short look at the machine once it is warm: the rates at which this job's own sizes are computed and sent, from
which the planner predicts the time of a step where the catalog has no data.

All ranks do the same at once, so that what they share (memory, caches, network) is shared as in training.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from convoy.catalog.gpus import chip_peak
from convoy.catalog.instances import instance, instance_names
from convoy.catalog.measured_machine import MeasuredMachine
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.config.train import ParamDtype, split_batch
from convoy.job.events.registry import ParamDtypeChoice
from convoy.model.families import block_of
from convoy.parallel.fsdp import DTYPES
from convoy.parallel.mesh import data_rank_and_size
from convoy.planner.workload import rented_type
from convoy.training.measure.collectives import collective_timings
from convoy.training.measure.machine import device_name, median_seconds_here, random_tensor
from convoy.training.process_groups import Ranks

MAX_TOKENS = 4096
"""Of a pass, in one measurement: on more of them rates hardly change."""

LINES_SECONDS = 0.5
"""At least, for all lines together: what computation adds to a collective varies by as much as it is."""

CHAIN = 100
"""Small operations in a row, whose graph is one backward pass."""


def probe_machine(config: RunConfig, ranks: Ranks, seconds: float) -> MeasuredMachine | None:
    """What this rank measured, each thing for about a quarter of `seconds`, and collectives for LINES_SECONDS at least.

    None where nobody needs it, for the catalog has the GPUs that were rented, and where no sizes are known, of a custom
    model. All ranks call it alike.
    """
    if not isinstance(config.model, TransformerConfig) or _is_gpu_in_catalog(config):
        return None
    sizes, each = _RankWorkload(config, config.model, ranks), seconds / 4
    gather, reduce, all_reduce = collective_timings(
        sizes.block, sizes.dtype, sizes.reduced, ranks, max(2 * each, LINES_SECONDS)
    )
    return MeasuredMachine(
        device=device_name(ranks.device),
        kind="cuda" if ranks.device.type == "cuda" else "cpu",
        dtype=config.train.param_dtype,
        threads=torch.get_num_threads(),
        ranks=ranks.place.world_size,
        matmul_flops=_matmul_flops_per_second(sizes, ranks, each),
        attention_flops=_attention_flops_per_second(sizes, ranks, each),
        memory_bytes_per_second=_memory_bytes_per_second(sizes, ranks, each),
        operation_seconds=_small_operation_seconds(ranks, each),
        gather=gather,
        reduce=reduce,
        all_reduce=all_reduce,
    )


def _is_gpu_in_catalog(config: RunConfig) -> bool:
    instance_type = rented_type(config)
    if instance_type is None or instance_type not in instance_names():
        return False
    gpu = instance(instance_type).gpu
    return gpu is not None and chip_peak(gpu.name) is not None


def rows_and_tokens(config: RunConfig, batch_parts: int) -> tuple[int, int]:
    """Sequences and tokens of one forward pass of a rank, as far as one measurement takes them. batch_parts: what
    a batch is divided into."""
    length = config.data.sequence_length
    _, rows = split_batch(config.train.global_batch, batch_parts, config.train.micro_batch)
    sequences = max(1, min(rows, MAX_TOKENS // length))
    return sequences, min(sequences * length, MAX_TOKENS)


def make_linear_products(x: torch.Tensor, gradient: torch.Tensor, weight: torch.Tensor) -> Callable[[], None]:
    """The three products of a linear layer, forward and backward: transposed operands have rates of their own.

    x: (tokens, width). gradient: (tokens, inner), of the layer's output. weight: (inner, width).
    """

    def forward_and_backward() -> None:
        F.linear(x, weight)
        gradient @ weight
        gradient.t() @ x

    return forward_and_backward


def linear_training_flops(tokens: int, width: int, inner: int) -> int:
    """Operations of `make_linear_products`."""
    return 3 * 2 * tokens * width * inner


class _RankWorkload:
    """Shapes and types of the job's tensors on one rank."""

    def __init__(self, config: RunConfig, model: TransformerConfig, ranks: Ranks) -> None:
        self.length = config.data.sequence_length
        self.sequences, self.tokens = rows_and_tokens(config, data_rank_and_size(ranks.mesh)[1])
        block, tensor = block_of(model), config.parallel.tensor
        self.width, self.inner = model.d_model, block.inner_width // tensor
        self.heads, self.head_width = max(1, block.heads // tensor), block.head_width
        self.fused = config.train.attention == "fused"
        self.dtype, self.reduced = DTYPES[config.train.param_dtype], DTYPES[config.train.reduce_dtype]
        self.block = block.parameters // tensor


def _matmul_flops_per_second(sizes: _RankWorkload, ranks: Ranks, seconds: float) -> float:
    """Operations/s of the MLP's products, forward and backward."""
    shapes = ((sizes.tokens, sizes.width), (sizes.tokens, sizes.inner), (sizes.inner, sizes.width))
    products = make_linear_products(*(random_tensor(ranks.device, sizes.dtype, *shape) for shape in shapes))
    return linear_training_flops(sizes.tokens, sizes.width, sizes.inner) / median_seconds_here(products, ranks, seconds)


def _attention_flops_per_second(sizes: _RankWorkload, ranks: Ranks, seconds: float) -> float | None:
    """Of fused attention, forward and backward: 2 and 5 t S d operations under a causal mask."""
    if not sizes.fused:
        return None
    shape = (sizes.sequences, sizes.heads, sizes.length, sizes.head_width)
    q, k, v = (random_tensor(ranks.device, sizes.dtype, *shape).requires_grad_() for _ in range(3))
    gradient = random_tensor(ranks.device, sizes.dtype, *shape)

    def attend() -> None:
        torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), gradient)

    done = 7 * sizes.sequences * sizes.length**2 * sizes.heads * sizes.head_width
    return done / median_seconds_here(attend, ranks, seconds)


def _memory_bytes_per_second(sizes: _RankWorkload, ranks: Ranks, seconds: float) -> float:
    """Bytes/s of a GELU, which reads and writes each activation once."""
    x = random_tensor(ranks.device, sizes.dtype, sizes.tokens, sizes.inner)
    return 2 * x.nbytes / median_seconds_here(lambda: F.gelu(x), ranks, seconds)


def _small_operation_seconds(ranks: Ranks, seconds: float) -> float:
    """Of one forward operation; its backward counts as two of them, as in the planner's count of kernels."""
    x = torch.ones(16, device=ranks.device, requires_grad=True)

    def chain() -> None:
        y = x
        for _ in range(CHAIN):
            y = y * 1.5
        y.backward(torch.ones_like(y))

    return median_seconds_here(chain, ranks, seconds) / (3 * CHAIN)


CUSTOM_WIDTH = 1024

ROUNDS = 7
"""Each type has a turn in each; at least so many,"""

SECONDS = 0.4
"""and as many as fill so much time."""


def choose_param_dtype(config: RunConfig, world_size: int) -> ParamDtypeChoice:
    """bf16 on a GPU; on a CPU the type whose products of the job's MLP have the smaller median time."""
    if torch.cuda.device_count():
        return ParamDtypeChoice(param_dtype="bf16", device=device_name(torch.device("cuda", 0)))
    cpu = torch.device("cpu")
    tokens, (width, ff) = rows_and_tokens(config, world_size // config.parallel.ranks_per_sample)[1], _mlp_shape(config)
    shapes = ((tokens, width), (tokens, ff), (ff, width))
    dtypes: tuple[ParamDtype, ...] = ("fp32", "bf16")
    products = {
        dtype: make_linear_products(*(random_tensor(cpu, DTYPES[dtype], *shape) for shape in shapes))
        for dtype in dtypes
    }
    seconds = _median_seconds_in_turns(products)
    flops = {dtype: linear_training_flops(tokens, width, ff) / seconds[dtype] for dtype in dtypes}
    return ParamDtypeChoice(
        param_dtype=max(dtypes, key=lambda dtype: flops[dtype]), device=device_name(cpu), flops=flops
    )


def _mlp_shape(config: RunConfig) -> tuple[int, int]:
    """Inputs and outputs of the MLP's first product on one rank; of a model of the user's own, about which nothing is
    known, CUSTOM_WIDTH for both."""
    if not isinstance(config.model, TransformerConfig):
        return CUSTOM_WIDTH, CUSTOM_WIDTH
    return config.model.d_model, block_of(config.model).inner_width // config.parallel.tensor


def _median_seconds_in_turns(calls: dict[ParamDtype, Callable[[], None]]) -> dict[ParamDtype, float]:
    """Median seconds of each call, taking turns, after one call of each that is not counted."""
    for call in calls.values():
        call()
    times: dict[ParamDtype, list[float]] = {dtype: [] for dtype in calls}
    ends = time.perf_counter() + SECONDS
    while len(times["fp32"]) < ROUNDS or time.perf_counter() < ends:
        for dtype, call in calls.items():
            began = time.perf_counter()
            call()
            times[dtype].append(time.perf_counter() - began)
    return {dtype: statistics.median(each) for dtype, each in times.items()}


if __name__ == "__main__":
    request = json.load(sys.stdin)
    print(choose_param_dtype(RunConfig.model_validate(request["config"]), request["world_size"]).model_dump_json())
