"""What one rank computes in a pass, counted: operations, bytes and kernels of one block and of the head.

Counts are of the forward pass; the backward pass is twice that, or 2.5 times for fused attention, which makes its
scores again. They are plain numbers, so that the same formulas serve one plan and a whole table of measurements at
once. docs/planner.md#compute derives each.
"""

from dataclasses import dataclass
from typing import Literal

from convoy.config.model import TransformerConfig
from convoy.config.train import TrainConfig
from convoy.planner.workload import Workload


@dataclass(frozen=True)
class Kernels:
    """What speed depends on and a configuration does not tell. The defaults are Convoy's own."""

    matmul: Literal["bf16", "fp8"] = "bf16"
    """Operands of the linear layers of blocks."""
    attention: Literal["sdpa", "triton"] = "sdpa"
    """Of fused attention: PyTorch's own (FlashAttention-2), or the Triton kernel of MPT (FlashAttention-1)."""
    fused_norm: bool = True
    """RMSNorm is one kernel, as in torch from 2.9 on; not where each operation of its formula is one."""


@dataclass(frozen=True)
class Work:
    """Of one rank and one pass."""

    blocks: float
    """That the rank has: of its pipeline stage."""
    matmul_flops: float
    """Of a block's linear layers."""
    matmul_bytes: float
    """Their operands and results, each moved once."""
    attention_flops: float
    """Of the scores that a causal mask leaves."""
    head_width: float
    memory_bytes: float
    """Moved by norms, residuals, rotation, the MLP's nonlinearity and attention's inputs and output."""
    kernels: float
    """Started in a block."""
    head_flops: float
    """Of the head, on the ranks that have it."""
    head_bytes: float
    logits: float
    """Elements."""
    again_matmul: float
    """Share of a block's linear layers that the backward pass makes again."""
    again_attention: float
    again_rest: float


def work(job: Workload, kernels: Kernels) -> Work:
    """Counted for the rank that has most of it. A block that is gathered matrix by matrix breaks at each gather, and is
    taken to gain nothing from being compiled."""
    model, whole = job.model, job.parallel.wrap == "block"
    train = job.train if whole else job.train.model_copy(update={"compile": False})
    tokens, size = job.tokens_per_pass, element_bytes(train)
    tensor, width, key_width = job.parallel.tensor, model.d_model, model.kv_heads * model.head_width
    layers = _linear_layers(model)
    matrices = sum(rows * columns for rows, columns in layers)
    operands = sum(tokens * (rows + columns) + rows * columns for rows, columns in layers)
    plain = train.attention == "plain"
    # A formula written out makes all scores, masks some, and moves them four times in fp32.
    scores = tokens * job.sequence_length * model.n_heads / tensor if plain else 0.0
    again = {"none": (0.0, 0.0, 0.0), "selective": (0.5, 0.0, 1.0), "full": (1.0, 1.0, 1.0)}
    matmul, attention, rest = again[train.activation_checkpointing]
    return Work(
        blocks=-(-model.n_layers // job.parallel.pipeline),
        matmul_flops=2.0 * tokens * matrices / tensor,
        matmul_bytes=size * operands / tensor,
        attention_flops=(4.0 if plain else 2.0) * tokens * job.sequence_length * width / tensor,
        head_width=model.head_width,
        memory_bytes=tokens * _moved(model, train, kernels, key_width, tensor) + 16.0 * scores,
        kernels=_kernels(model, train),
        head_flops=2.0 * tokens * model.vocab_size * width / tensor,
        head_bytes=size * (tokens * (model.vocab_size + width) + model.vocab_size * width) / tensor,
        logits=tokens * model.vocab_size / tensor,
        again_matmul=matmul,
        again_attention=attention,
        again_rest=rest,
    )


def element_bytes(train: TrainConfig) -> int:
    """Of parameters and activations."""
    return 2 if train.param_dtype == "bf16" else 4


def _linear_layers(model: TransformerConfig) -> list[tuple[int, int]]:
    """(inputs, outputs) of each in a block; of grouped queries, keys and values are narrower."""
    width, inner = model.d_model, model.ff_width
    up = 2 if model.mlp == "swiglu" else 1
    return [(width, width + 2 * model.kv_heads * model.head_width), (width, width), (width, up * inner), (inner, width)]


def _moved(model: TransformerConfig, train: TrainConfig, kernels: Kernels, key_width: int, tensor: int) -> float:
    """Bytes for each token: a kernel reads and writes each of its elements once. A compiled block makes a norm with the
    residual before it, a rotation, and a gated nonlinearity in one kernel each. Ranks that share products each have all
    of the residual stream."""
    width, inner, compiled, size = model.d_model, model.ff_width, train.compile, element_bytes(train)
    rotated = width + key_width
    norm = 2 * 2 * size * width
    if model.norm == "rmsnorm" and not (compiled or kernels.fused_norm):
        norm = 2 * 30 * width  # to fp32, square, mean, scale, back, times the weight
    residual = (4 if compiled else 12) * width * size / 2
    attention = 2 * size * (width + key_width)
    if model.positions == "rotary":
        attention += 2 * size * rotated if compiled else 24 * rotated  # in fp32: there, turned, back
    nonlinear = {("gelu", True): 2, ("gelu", False): 2, ("swiglu", True): 3, ("swiglu", False): 5}
    return norm + residual + (attention + nonlinear[model.mlp, compiled] * size * inner) / tensor


def _kernels(model: TransformerConfig, train: TrainConfig) -> float:
    if train.compile:
        return 10.0
    return 30.0 if model.positions == "rotary" else 14.0
