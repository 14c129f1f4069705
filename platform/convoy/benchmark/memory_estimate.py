"""What a case takes of a rank's memories, estimated before anything runs, and the largest model that has room there.

Of Convoy's own cases and torch's DDP it is what the planner says of a step without activations; of other libraries,
arithmetic over a model's size. At least so much is taken. Imports no torch.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, NamedTuple, cast

from convoy.benchmark.groups import PeerKind, Ranks, VariantSpec
from convoy.benchmark.results import values
from convoy.config.model import CustomModelConfig, TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.config.train import TrainConfig
from convoy.model.counts import SAVED_BYTES, TRAINED_BYTES, parameter_count
from convoy.planner.memory.rank import peak_bytes_by_part
from convoy.planner.step.fsdp_units import WIDTH, stages
from convoy.planner.workload import UNNAMED, Machine, Workload

WEIGHT_BYTES = 4
"""Bytes of a parameter that trains, and of its gradient."""

BUCKET_ELEMENTS = 5 * 10**8
"""Gradients that DeepSpeed by default has room for in a bucket (`reduce_bucket_size`), however small the model. It
counts on GPUs: a host gives only the pages that are written to."""

MAX_LAYERS = 10**6
"""Nobody has memory for more."""

LARGEST_MODEL_KEY = "largest model"
"""Its name in `not_measured`."""


class MemoryUse(NamedTuple):
    """Bytes of one memory that a case takes on the rank that has most of it, at least."""

    states: int = 0
    """While it makes a step: weights, gradients and moments, and what a step must hold of gathered or copied weights,
    and of gradients that are not reduced yet."""
    rest: int = 0
    """Of these, between its steps: weights and moments, and buffers for gradients that stay."""
    weights: int = 0
    """Once it is built and before its first step."""
    built: int = 0
    """While it is built: no less than the weights that it keeps then."""


class CaseMemory(NamedTuple):
    """Memory that a case takes in each place."""

    device: MemoryUse
    """Where it computes: a GPU's memory; the host's where there is none."""
    host: MemoryUse
    """The host's, of a case on a GPU."""


NOTHING = CaseMemory(MemoryUse(), MemoryUse())


def estimate_memory(spec: VariantSpec, run: RunConfig, ranks: Ranks) -> CaseMemory:
    """Of a case; nothing of a custom model, whose size is not known. Raises ValueError for ranks that cannot be divided
    as configured."""
    config = spec.config(run)
    return NOTHING if isinstance(config.model, CustomModelConfig) else _model_memory(spec, config, config.model, ranks)


def _model_memory(spec: VariantSpec, config: RunConfig, model: TransformerConfig, ranks: Ranks) -> CaseMemory:
    """config: the case's own. model: that it trains."""
    if spec.needs_gpu and not ranks.on_gpus:
        return NOTHING  # it is left out there
    n = spec.ranks or ranks.all
    on_node = min(n, ranks.per_node)
    machine = Machine(UNNAMED if ranks.on_gpus else "cpu", on_node, 0.0, 0.0, 0.0, 0.0)
    job = Workload(model, config.data.sequence_length, config.train, config.parallel, machine, n // on_node)
    match spec.kind:
        case "ours" | "saving" if config.engine.name != "convoy":
            zero = f"DeepSpeed ZeRO-{config.engine.zero_stage}"
            library = "accelerate FSDP2" if config.engine.name == "accelerate" else zero
            return _peer_memory(cast(PeerKind, library), job, ranks)
        case "ours" | "saving":
            return _convoy_memory(job, fused=config.optimizer.fused)
        case "baseline":
            weights = WEIGHT_BYTES * parameter_count(model)
            # It draws the weights that ours begins with in a model of ours on the host, and copies them.
            on_host = MemoryUse(built=weights) if ranks.on_gpus else MemoryUse()
            return CaseMemory(_baseline_memory(parameter_count(model), ranks=n), on_host)
        case "sharded baseline":
            built = _peer_memory("accelerate FSDP2", job, ranks)
            on_host = MemoryUse(built=WEIGHT_BYTES * parameter_count(model)) if ranks.on_gpus else MemoryUse()
            return CaseMemory(built.device, on_host)
        case "JAX" | "MLX" | "Horovod":  # weights, gradients and moments in fp32 on each rank, as the baseline
            return CaseMemory(_baseline_memory(parameter_count(model), ranks=n), MemoryUse())
        case kind:
            return _peer_memory(kind, job, ranks)


def bytes_in_turns(cases: Iterable[MemoryUse]) -> int:
    """What cases take while one of them makes its step, the one that takes most for that, and all others are between
    theirs."""
    each = list(cases)
    return sum(case.rest for case in each) + max((case.states - case.rest for case in each), default=0)


def gang_bytes(cases: Iterable[MemoryUse]) -> int:
    """What cases take that are built one after the other, and then take turns: when they do, or already when the one is
    built that takes most for that."""
    each = list(cases)
    building = max((case.built - case.weights for case in each), default=0)
    return max(bytes_in_turns(each), sum(case.weights for case in each) + building)


def largest_model(spec: VariantSpec, run: RunConfig, ranks: Ranks) -> TransformerConfig | str:
    """The model of the case with as many layers as have room on its ranks while it trains, all else as it is, were it
    there by itself; or why there is none. Other libraries can begin with less than the whole model on each rank, as it
    is built here: what that takes limits what is measured, and not what they can train."""
    config = spec.config(run)
    shape, device, host = config.model, ranks.memory_bytes, ranks.host_bytes
    if isinstance(shape, CustomModelConfig):
        return "the size of a custom model is not known"
    if device is None:
        return "the memory of a rank is not known"

    def layered(n: int) -> TransformerConfig:
        return shape.model_copy(update={"n_layers": n})

    def lacks_room(n: int) -> bool:
        needed = _model_memory(spec, config, layered(n), ranks)
        return needed.device.states > device or (host is not None and needed.host.states > host)

    counts = range(config.parallel.pipeline, MAX_LAYERS)  # a stage has a layer at least
    fitting = bisect_right(counts, False, key=lacks_room)
    return layered(counts[fitting - 1]) if fitting else f"a model of {counts[0]} of its layers has no room"


def with_largest_size(spec: VariantSpec, run: RunConfig, ranks: Ranks) -> VariantSpec:
    """The case with its largest model and the memory that it was computed for, or why there is none."""
    model = largest_model(spec, run, ranks)
    if isinstance(model, str):
        return spec.model_copy(update={"not_measured": {**spec.not_measured, LARGEST_MODEL_KEY: model}})
    figures = {
        values.LARGEST_MODEL_PARAMETERS: parameter_count(model),
        values.LARGEST_MODEL_LAYERS: model.n_layers,
        values.RANK_MEMORY_BYTES: ranks.memory_bytes,
        values.RANK_HOST_BYTES: ranks.host_bytes,
    }
    present = {name: float(value) for name, value in figures.items() if value is not None}
    return spec.model_copy(update={"values": {**spec.values, **present}})


def _convoy_memory(job: Workload, *, fused: bool) -> CaseMemory:
    """By the planner."""
    if job.parallel.uses_ddp:
        return CaseMemory(_ddp_memory(job, fused=fused), MemoryUse())
    states, shard = _step_bytes(job, fused=fused), max(stage.shard_elements for stage in stages(job))
    trained, rest, weights = TRAINED_BYTES * shard, SAVED_BYTES * shard, WEIGHT_BYTES * shard
    if job.parallel.cpu_offload and job.machine.gpu != "cpu":
        return CaseMemory(MemoryUse(states=states), MemoryUse(trained, rest, weights, weights))
    return CaseMemory(MemoryUse(states, rest, weights, weights), MemoryUse())


def _baseline_memory(n_params: int, *, ranks: int) -> MemoryUse:
    """Several ranks have the buckets of DistributedDataParallel from the start, as copies next to the gradients."""
    buckets = WEIGHT_BYTES * n_params if ranks > 1 else 0
    built = WEIGHT_BYTES * n_params + buckets
    return MemoryUse(TRAINED_BYTES * n_params + buckets, SAVED_BYTES * n_params + buckets, built, built)


def _peer_memory(kind: PeerKind, job: Workload, ranks: Ranks) -> CaseMemory:
    """What another library keeps, whose ranks each build the whole model in fp32 before it is spread. Of several passes
    torch's DDP and accelerate reduce gradients after the last (`no_sync`)."""
    whole, train, several = parameter_count(job.model), job.train, job.passes > 1
    shard, building = -(-whole // job.ranks_per_state_copy), WEIGHT_BYTES * whole
    match kind:
        case "torch DDP":
            return CaseMemory(_torch_ddp_memory(job), MemoryUse())
        case "accelerate FSDP2":  # keeps the whole weights until all shards are made (`fsdp2_prepare_model`)
            rest, gradients = SAVED_BYTES * shard, WIDTH[train.reduce_dtype] * whole if several else 0
            most = max(TRAINED_BYTES * shard, rest + gradients)
            return CaseMemory(MemoryUse(most, rest, WEIGHT_BYTES * shard, building + WEIGHT_BYTES * shard), MemoryUse())
        case "DeepSpeed ZeRO-3":
            return CaseMemory(_zero_3_memory(whole, shard, train, ranks), MemoryUse())
        case kind:
            return _zero_1_2_memory(kind, whole, shard, train, ranks)


def _torch_ddp_memory(job: Workload) -> MemoryUse:
    """As of Convoy's own `ddp`, but it all-reduces fp32 gradients on CPUs as on GPUs: it has no buffers to add them in
    the order of ranks."""
    train = job.train.model_copy(update={"reduce_dtype": "fp32"})
    machine = replace(job.machine, gpu=UNNAMED)
    return _ddp_memory(replace(job, parallel=ParallelConfig(strategy="ddp"), train=train, machine=machine), fused=True)


def _ddp_memory(job: Workload, *, fused: bool) -> MemoryUse:
    """Compiled blocks also keep the copies of their weights for bf16 until backward."""
    return _with_ddp_buckets(_step_bytes(job, fused=fused), parameter_count(job.model))


def _step_bytes(job: Workload, *, fused: bool) -> int:
    """Peak of a step whose sequences have one token, which leaves next to no activations."""
    return sum(peak_bytes_by_part(replace(job, sequence_length=1), fused=fused).values())


def _with_ddp_buckets(states: int, n_params: int) -> MemoryUse:
    """DDP's buckets, of which gradients are views, exist from the start, and stay."""
    built = 2 * WEIGHT_BYTES * n_params
    return MemoryUse(states, TRAINED_BYTES * n_params, built, built)


def _zero_1_2_memory(
    kind: Literal["DeepSpeed ZeRO-1", "DeepSpeed ZeRO-2"], n_params: int, n_shard: int, train: TrainConfig, ranks: Ranks
) -> CaseMemory:
    """Of DeepSpeed's `stage_1_and_2.py`: weights and gradients in the type that computes, and each rank's part of fp32
    masters. It copies all weights into one buffer: on a GPU that has room for that, else on its host. Each backward
    makes two buckets and frees them; the update frees the gradients."""
    width = WIDTH[train.param_dtype]
    copy, building, both = width * n_params, WEIGHT_BYTES * n_params, 2 * width * n_params
    gradients = copy if kind == "DeepSpeed ZeRO-1" else width * n_shard
    rest = copy + SAVED_BYTES * n_shard
    if not ranks.on_gpus:
        return CaseMemory(MemoryUse(rest + gradients, rest, copy, max(building, both)), MemoryUse())
    on_gpu = ranks.memory_bytes is None or both <= ranks.memory_bytes
    states = rest + gradients + 2 * width * BUCKET_ELEMENTS
    device = MemoryUse(states, rest, copy, max(building, both if on_gpu else 0))
    return CaseMemory(device, MemoryUse() if on_gpu else MemoryUse(built=both))


def _zero_3_memory(n_params: int, n_shard: int, train: TrainConfig, ranks: Ranks) -> MemoryUse:
    """Of DeepSpeed's `stage3.py`: fp32 weights are their own masters. Between steps it keeps a bucket, and the buffer
    that its part of the gradients is in."""
    bucket = WIDTH[train.reduce_dtype] * BUCKET_ELEMENTS if ranks.on_gpus else 0
    weights = WIDTH[train.param_dtype] * n_shard + bucket
    states = TRAINED_BYTES * n_shard + bucket
    return MemoryUse(states, states, weights, max(WEIGHT_BYTES * n_params, weights))
