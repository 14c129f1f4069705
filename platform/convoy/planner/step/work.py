"""What one rank computes in a pass, counted: operations, bytes and kernels of one block and of the head.

Counts are of the forward pass; the backward pass is twice that, or 2.5 times for fused attention, which makes its
scores again, and what is recomputed. They are plain numbers, so that the same formulas serve one plan and
a whole table of measurements at once. docs/explanation/step-time.md#compute derives each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from convoy.config.model import TransformerConfig
from convoy.config.train import TrainConfig
from convoy.model.families import block_of
from convoy.planner.workload import Workload


@dataclass(frozen=True)
class Kernels:
    """Software that speed depends on and a configuration does not name. The defaults are Convoy's own."""

    matmul: Literal["bf16", "fp8"] = "bf16"
    attention: Literal["sdpa", "triton"] = "sdpa"
    """Fused attention: PyTorch's own (FlashAttention-2), or the Triton kernel of MPT (FlashAttention-1)."""
    fused_norm: bool = True
    """RMSNorm is one kernel, as in torch from 2.9 on, not one for each operation of its formula."""
    separate_projections: bool = False
    """Queries, keys and values are three products, which selective recomputation counts one by one."""
    stops_early: bool = True
    """Recomputation of a block stops at what backward needs last, as in torch from 2.1 on."""
    whole_blocks: float | None = None
    """Selective recomputation repeats this share of blocks as a whole; None: operators, in each block."""


@dataclass(frozen=True)
class Recomputation:
    """What the backward pass recomputes of a block, in shares of its forward pass."""

    matmul: float
    attention: float
    rest: float
    """Bytes that are moved between products; kernels count alike."""


@dataclass(frozen=True)
class PassWork:
    """One pass of one rank. Counts are per block, unless they are the head's, and of the forward pass."""

    blocks: float
    """Blocks of the rank's pipeline stage."""
    matmul_flops: float
    matmul_bytes: float
    """Operands and results of linear layers, each moved once."""
    attention_flops: float
    """Scores that a causal mask leaves; all of them where attention is plain."""
    attention_backward: float
    """Backward over forward."""
    head_width: float
    memory_bytes: float
    """Moved by norms, residuals, rotation, the MLP's nonlinearity and attention's inputs and output."""
    kernels: float
    head_flops: float
    head_bytes: float
    logits: float
    """Elements."""
    again: Recomputation


def pass_work(job: Workload, kernels: Kernels) -> PassWork:
    """Counted for the rank that has most of it. A block that is gathered matrix by matrix breaks at each gather, and is
    taken to gain nothing from being compiled."""
    model, whole = job.model, job.parallel.wrap == "block"
    train = job.train if whole else job.train.model_copy(update={"compile": False})
    tokens, size, tensor, width = job.tokens_per_pass, element_bytes(train), job.parallel.tensor, model.d_model
    block, layers = block_of(model), linear_layers(model)
    matrices = sum(rows * columns for rows, columns in layers)
    operands = sum(tokens * (rows + columns) + rows * columns for rows, columns in layers)
    plain = train.attention == "plain"
    # A formula written out makes all scores, masks some, and moves them four times in fp32.
    scores = tokens * job.sequence_length * block.heads / tensor if plain else 0.0
    moved = _bytes_per_token(model, train, kernels, tensor)
    moved["attention"] += 16.0 * scores / tokens
    return PassWork(
        blocks=-(-model.n_layers // job.parallel.pipeline),
        matmul_flops=2.0 * tokens * matrices / tensor,
        matmul_bytes=size * operands / tensor,
        attention_flops=(4.0 if plain else 2.0) * tokens * job.sequence_length * block.attention_width / tensor,
        attention_backward=2.0 if plain else 2.5,
        head_width=block.head_width,
        memory_bytes=tokens * sum(moved.values()),
        kernels=_kernel_count(model, train),
        head_flops=2.0 * tokens * model.vocab_size * width / tensor,
        head_bytes=size * (tokens * (model.vocab_size + width) + model.vocab_size * width) / tensor,
        logits=tokens * model.vocab_size / tensor,
        again=_recomputation(model, train, kernels, moved),
    )


def element_bytes(train: TrainConfig) -> int:
    return 2 if train.param_dtype == "bf16" else 4


def linear_layers(model: TransformerConfig, *, separate_qkv: bool = False) -> list[tuple[int, int]]:
    """(inputs, outputs) of each in a block, in forward's order; of grouped queries, keys and values are narrower.
    separate_qkv: queries, keys and values have one each."""
    matrices = block_of(model).matrices
    return [(m.columns, rows) for m in matrices for rows in (m.parts if separate_qkv and m.parts else (m.rows,))]


def _bytes_per_token(model: TransformerConfig, train: TrainConfig, kernels: Kernels, tensor: int) -> dict[str, float]:
    """Bytes for each token: a kernel reads and writes each of its elements once. A compiled block makes a norm with the
    residual before it, a rotation, and a gated nonlinearity in one kernel each. Ranks that share products each have all
    of the residual stream."""
    block, compiled, size = block_of(model), train.compile, element_bytes(train)
    rotated = block.attention_width + block.kv_width  # queries and keys
    normed = sum(norm.width for norm in block.norms)
    norm = 2 * size * normed
    if model.norm == "rmsnorm" and not (compiled or kernels.fused_norm):
        norm = 30 * normed  # to fp32, square, mean, scale, back, times the weight
    rotation = 0 if not block.rotary else 2 * size * rotated if compiled else 24 * rotated
    nonlinear = 2 if not block.gated else 3 if compiled else 5
    return {
        "norms": norm,
        "residuals": (4 if compiled else 12) * model.d_model * size / 2,
        "attention": 2 * size * rotated / tensor,
        "rotation": rotation / tensor,  # not compiled, in fp32: there, turned, back
        "nonlinear": nonlinear * size * block.inner_width / tensor,
    }


def _recomputation(
    model: TransformerConfig, train: TrainConfig, kernels: Kernels, moved: Mapping[str, float]
) -> Recomputation:
    """moved: bytes of `norms`, `residuals`, `attention` and more.

    torch computes a block again only as far as backward needs something of it: nothing needs the last product's result,
    so neither that product nor the residual behind it is made again, unless the mask of a dropout is behind them.
    `selective` keeps the first, third, fifth and seventh product, and fused attention, as
    `parallel/activation_checkpointing.py` says.
    """
    mode, share = train.activation_checkpointing, 1.0
    if mode == "none":
        return Recomputation(0.0, 0.0, 0.0)
    if mode == "selective" and kernels.whole_blocks is not None:
        mode, share = "full", kernels.whole_blocks
    products = [rows * columns for rows, columns in linear_layers(model, separate_qkv=kernels.separate_projections)]
    to_the_end = model.dropout > 0 or not kernels.stops_early
    needed = len(products) - (0 if to_the_end else 1)
    made = range(needed) if mode == "full" else range(1, needed, 2)
    attention = 1.0 if mode == "full" or train.attention == "plain" else 0.0
    spared = (0.0 if to_the_end else moved["residuals"] / 2) + (1 - attention) * moved["attention"]
    return Recomputation(
        matmul=share * sum(products[i] for i in made) / sum(products),
        attention=share * attention,
        rest=share * (1 - spared / sum(moved.values())),
    )


def _kernel_count(model: TransformerConfig, train: TrainConfig) -> float:
    if train.compile:
        return 10.0
    return 30.0 if block_of(model).rotary else 14.0
