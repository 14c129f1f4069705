"""What a case takes of a rank's memories, told before anything runs, and the largest model that they have room for.

Arithmetic over a model's size: at least so much is taken. Activations, buffers, and what one block gathers come on top.
Imports no torch.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable
from typing import Literal, NamedTuple

from convoy.benchmark.groups import PeerKind, Ranks, VariantSpec
from convoy.benchmark.needs import GPU
from convoy.config.model import CustomModelConfig, TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.config.train import TrainConfig
from convoy.model.counts import SAVED_BYTES, TRAINED_BYTES, embedding_parameter_count, parameter_count

WEIGHT_BYTES = 4
"""Of a parameter that trains; a gradient has as many."""

TYPE_BYTES = {"bf16": 2, "fp32": 4}
"""Per weight, in the type in which a step computes; per gradient, in the type in which gradients are reduced."""

BUCKET_ELEMENTS = 5 * 10**8
"""Gradients that DeepSpeed by default has room for in a bucket (`reduce_bucket_size`), however small the model. It
counts on GPUs: a host gives only the pages that are written to."""

MOST_LAYERS = 10**6
"""Nobody has memory for more."""


class Taken(NamedTuple):
    """Bytes of one memory that a case takes on the rank that has most of it, at least."""

    states: int = 0
    """While it makes a step: weights, gradients and moments, and what a step must hold of gathered or copied weights,
    and of gradients that are not reduced yet, beside them."""
    rest: int = 0
    """Of these, between its steps: weights and moments, and buffers for gradients that stay."""
    weights: int = 0
    """Once it is built and before its first step."""
    built: int = 0
    """While it is built: no less than the weights that it keeps then."""


class Memories(NamedTuple):
    """What a case takes of each."""

    device: Taken
    """That computes: a GPU's memory; the host's where there is none."""
    host: Taken
    """The host's, beside a GPU."""


NOTHING = Memories(Taken(), Taken())


def memories(spec: VariantSpec, run: RunConfig, ranks: Ranks) -> Memories | None:
    """Of a case; None: a custom model's size is not known."""
    config = spec.config(run)
    return None if isinstance(config.model, CustomModelConfig) else _memories(spec, config, config.model, ranks)


def _memories(spec: VariantSpec, config: RunConfig, model: TransformerConfig, ranks: Ranks) -> Memories:
    """config: the case's own. model: that it trains."""
    if spec.needs == GPU and not ranks.on_gpus:
        return NOTHING  # it is left out there
    n = spec.ranks or ranks.all
    sharing = config.parallel.sharing(n, min(n, ranks.per_node))
    match spec.kind:
        case "ours" | "saving":
            return _ours(model, config, n, sharing, on_gpus=ranks.on_gpus)
        case "baseline":
            weights = WEIGHT_BYTES * parameter_count(model)
            # It draws the weights that ours begins with in a model of ours on the host, and copies them.
            on_host = Taken(built=weights) if ranks.on_gpus else Taken()
            return Memories(_baseline(parameter_count(model), ranks=n), on_host)
        case kind:
            return _peer(kind, model, sharing, config.train, ranks, several=passes(config, n) > 1)


def taking_turns(cases: Iterable[Taken]) -> int:
    """What cases take while one of them makes its step, the one that takes most for that, and all others are between
    theirs."""
    taken = list(cases)
    return sum(each.rest for each in taken) + max((each.states - each.rest for each in taken), default=0)


def together(cases: Iterable[Taken]) -> int:
    """What cases take that are built one after the other, and then take turns: when they do, or already when the one is
    built that takes most for that."""
    taken = list(cases)
    building = max((each.built - each.weights for each in taken), default=0)
    return max(taking_turns(taken), sum(each.weights for each in taken) + building)


def largest_model(spec: VariantSpec, run: RunConfig, ranks: Ranks) -> TransformerConfig | str:
    """The model of the case with as many layers as have room on its ranks while it trains, all else as it is, were it
    there by itself; or why none is told. Other libraries can begin with less than the whole model on each rank, as it
    is built here: what that takes limits what is measured, and not what they can train."""
    config = spec.config(run)
    shape, device, host = config.model, ranks.memory_bytes, ranks.host_bytes
    if isinstance(shape, CustomModelConfig):
        return "the size of a custom model is not known"
    if device is None:
        return "the memory of a rank is not known"

    def layered(n: int) -> TransformerConfig:
        return shape.model_copy(update={"n_layers": n})

    def lacking(n: int) -> bool:
        found = _memories(spec, config, layered(n), ranks)
        return found.device.states > device or (host is not None and found.host.states > host)

    counts = range(config.parallel.pipeline, MOST_LAYERS)  # a stage has a layer at least
    fitting = bisect_right(counts, False, key=lacking)
    return layered(counts[fitting - 1]) if fitting else f"a model of {counts[0]} of its layers has no room"


def passes(config: RunConfig, ranks: int) -> int:
    """Of a step, by a rank that has most of its sequences. ranks: that train together."""
    most = math.ceil(config.train.global_batch / max(1, ranks // config.parallel.shared_by))
    return math.ceil(most / config.train.micro_batch)


def _ours(model: TransformerConfig, config: RunConfig, ranks: int, sharing: int, *, on_gpus: bool) -> Memories:
    """What FSDP2 keeps. Where blocks stay gathered from forward to backward, the weights of all are there in the type
    that computes, when no gradient of the pass is yet; those of the passes before it are there, reduced or not. A rank
    that shares with no other gathers too: it copies. Gradients that are reduced are added up in fp32; those that are
    not, or not yet between replicas, in the type in which they will be.

    A pipeline reduces after its last micro batch, and until then keeps what it has gathered (`PipelineStage` of torch
    turns off both after each backward)."""
    parallel, train, fullest = config.parallel, config.train, _fullest(model, config.parallel)
    shards = max(1, sharing // parallel.shared_by)
    kept, rest, weights = (-(-of_each * fullest // shards) for of_each in (TRAINED_BYTES, SAVED_BYTES, WEIGHT_BYTES))
    staged, several = parallel.pipeline > 1, passes(config, ranks) > 1
    gathered = TYPE_BYTES[train.param_dtype] * fullest if staged or not parallel.reshard_after_forward else 0
    late = staged or (several and not parallel.reduce_every_pass)
    width = TYPE_BYTES[train.reduce_dtype] if late or parallel.strategy != "fsdp" else WEIGHT_BYTES
    gradients = width * fullest if several else 0
    if parallel.cpu_offload and on_gpus:
        return Memories(Taken(states=gathered + (gradients if late else 0)), Taken(kept, rest, weights, weights))
    gradients = gradients if late else -(-gradients // shards)
    return Memories(Taken(max(kept, rest + gathered + gradients), rest, weights, weights), Taken())


def _fullest(model: TransformerConfig, parallel: ParallelConfig) -> int:
    """Parameters that the ranks of one shard group have: of the stage with most. Ranks that share products have the
    embedding and the head whole, as `parallel/tensor.py` cuts it; `parallel/pipeline.py` the blocks."""
    whole = parameter_count(model)
    if parallel.shared_by == 1:
        return whole
    layer = parameter_count(model.model_copy(update={"n_layers": 2}))
    layer -= parameter_count(model.model_copy(update={"n_layers": 1}))
    embedding = embedding_parameter_count(model)
    head = whole - embedding - model.n_layers * layer
    if parallel.pipeline == 1:
        return model.n_layers * layer // parallel.tensor + embedding + head
    each, more = divmod(model.n_layers, parallel.pipeline)
    first = (each + (more > 0)) * layer // parallel.tensor + embedding
    return max(first, each * layer // parallel.tensor + head)


def _baseline(whole: int, *, ranks: int) -> Taken:
    """Several ranks have the buckets of DistributedDataParallel from the start, as copies beside the gradients."""
    buckets = WEIGHT_BYTES * whole if ranks > 1 else 0
    built = WEIGHT_BYTES * whole + buckets
    return Taken(TRAINED_BYTES * whole + buckets, SAVED_BYTES * whole + buckets, built, built)


def _peer(
    kind: PeerKind, model: TransformerConfig, sharing: int, train: TrainConfig, ranks: Ranks, *, several: bool
) -> Memories:
    """What another library keeps, whose ranks each build the whole model in fp32 before it is spread.

    sharing: ranks that share what the library shards. several: passes of a step, of which torch's DDP and accelerate
    reduce gradients after the last (`no_sync`).
    """
    whole = parameter_count(model)
    shard, building = -(-whole // sharing), WEIGHT_BYTES * whole
    match kind:
        case "torch DDP":
            return Memories(_torch_ddp(model, train, several=several), Taken())
        case "accelerate FSDP2":  # keeps the whole weights until all shards are made (`fsdp2_prepare_model`)
            rest, gradients = SAVED_BYTES * shard, TYPE_BYTES[train.reduce_dtype] * whole if several else 0
            states = max(TRAINED_BYTES * shard, rest + gradients)
            return Memories(Taken(states, rest, WEIGHT_BYTES * shard, building + WEIGHT_BYTES * shard), Taken())
        case "DeepSpeed ZeRO-3":
            return Memories(_zero_3(whole, shard, train, ranks), Taken())
        case kind:
            return _flattened(kind, whole, shard, train, ranks)


def _torch_ddp(model: TransformerConfig, train: TrainConfig, *, several: bool) -> Taken:
    """It has the buckets of gradients from the start. Gradients become views of them as the last pass reduces them;
    those of the passes before it are beside them.

    For bf16, autocast copies the weights of linear layers, and keeps all copies until forward ends; compiled blocks
    make their own. Norms are not copied, nor is the head for longer than its loss; but the head's whole fp32 gradient
    is there from then on (`model/loss.py`), which is more.
    """
    whole = parameter_count(model)
    copied = whole - embedding_parameter_count(model) if train.param_dtype == "bf16" and not train.compile else 0
    earlier = whole if several else 0
    states = TRAINED_BYTES * whole + WEIGHT_BYTES * earlier + TYPE_BYTES["bf16"] * copied
    built = 2 * WEIGHT_BYTES * whole
    return Taken(states, TRAINED_BYTES * whole, built, built)


def _flattened(
    kind: Literal["DeepSpeed ZeRO-1", "DeepSpeed ZeRO-2"], whole: int, shard: int, train: TrainConfig, ranks: Ranks
) -> Memories:
    """Of DeepSpeed's `stage_1_and_2.py`: weights and gradients in the type that computes, and each rank's part of fp32
    masters beside them. It copies all weights into one buffer: on a GPU that has room for that, else on its host. Each
    backward makes two buckets and frees them; the update frees the gradients."""
    width = TYPE_BYTES[train.param_dtype]
    kept, building, both = width * whole, WEIGHT_BYTES * whole, 2 * width * whole
    gradients = kept if kind == "DeepSpeed ZeRO-1" else width * shard
    rest = kept + SAVED_BYTES * shard
    if not ranks.on_gpus:
        return Memories(Taken(rest + gradients, rest, kept, max(building, both)), Taken())
    on_gpu = ranks.memory_bytes is None or both <= ranks.memory_bytes
    states = rest + gradients + 2 * width * BUCKET_ELEMENTS
    device = Taken(states, rest, kept, max(building, both if on_gpu else 0))
    return Memories(device, Taken() if on_gpu else Taken(built=both))


def _zero_3(whole: int, shard: int, train: TrainConfig, ranks: Ranks) -> Taken:
    """Of DeepSpeed's `stage3.py`: fp32 weights are their own masters. Between steps it keeps a bucket, and the buffer
    that its part of the gradients is in."""
    bucket = TYPE_BYTES[train.reduce_dtype] * BUCKET_ELEMENTS if ranks.on_gpus else 0
    kept = TYPE_BYTES[train.param_dtype] * shard + bucket
    states = TRAINED_BYTES * shard + bucket
    return Taken(states, states, kept, max(WEIGHT_BYTES * whole, kept))
