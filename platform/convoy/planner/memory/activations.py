"""What a decoder block keeps of its forward, and what its backward takes on top, tensor by tensor; and the head's loss.

Read off `model/dense/modules.py` and `model/loss.py`, and off what autograd saves for each of their operators;
attention is one kernel that keeps its inputs, its output, and one fp32 number for each head and token. Not compiled: a
compiled block keeps no more.
"""

from dataclasses import dataclass
from typing import Protocol

from convoy.model.block import Block
from convoy.model.families import block_of
from convoy.planner.memory.accumulator import LiveTensors, MemoryAccumulator
from convoy.planner.step.fsdp_units import WIDTH
from convoy.planner.workload import Workload


class MatrixObserver(Protocol):
    """Receives when a matrix of a block is at work, by its name."""

    def on_forward(self, name: str) -> None:
        """It is about to be multiplied."""

    def on_gradient(self, name: str) -> None:
        """Its gradient is made."""

    def on_backward_done(self, name: str) -> None:
        """Its backward is over."""


@dataclass(frozen=True)
class BlockActivationBytes:
    """Bytes of the tensors of a block, of one pass of one rank."""

    block: Block
    hidden: int
    """The residual stream."""
    branch: int
    """What attention or the MLP adds to it."""
    uncast: int
    """Of the width of the residual stream, before autocast copies it; 0: there is no autocast."""
    middle: int
    """Of the residual stream between attention and the MLP; 0: both read the same norm."""
    normed: int
    """After a norm, with what the norm saves next to its input. By autocast a copy for each matrix that reads it."""
    normed_2: int
    """After a second one."""
    qkv: int
    rotated: int
    """Queries and keys; 0: they are not rotated."""
    mixed: int
    """Result of attention, and what it saves next to that."""
    inner: int
    """Of the width of the MLP."""
    mask: int
    """Mask of one dropout."""
    plain: int
    """Scores of an attention that keeps them."""

    @classmethod
    def of(cls, workload: Workload) -> "BlockActivationBytes":
        model, train, cut = workload.model, workload.train, workload.parallel.tensor
        width, tokens = WIDTH[train.param_dtype], workload.tokens_per_pass
        block = block_of(model)
        heads, shared, head = block.heads // cut, block.kv_heads // cut, block.head_width
        branch, autocasts = width * tokens * model.d_model, workload.autocasts
        hidden = 4 * tokens * model.d_model if autocasts else branch
        saved, alone = 4 * tokens * (2 if model.norm == "layernorm" else 1), block.parallel_residual
        readers, readers_2 = len(block.attention) - 1, len(block.mlp) - 1
        copies, copies_2 = (readers + readers_2 * alone, readers_2) if autocasts else (1, 1)
        scores = tokens * heads * workload.sequence_length
        return cls(
            block=block,
            hidden=hidden,
            branch=branch,
            uncast=hidden if autocasts else 0,
            middle=0 if alone else hidden,
            normed=copies * branch + saved,
            normed_2=0 if alone else copies_2 * branch + saved,
            qkv=width * tokens * sum(matrix.rows // cut for matrix in block.attention[:-1]),
            rotated=width * tokens * (heads + shared) * head if block.rotary else 0,
            mixed=width * tokens * heads * head + 4 * tokens * heads,
            inner=width * tokens * (block.inner_width // cut),
            mask=tokens * model.d_model if model.dropout else 0,
            plain=scores * 4 if train.attention == "plain" else 0,
        )


def saved_activations(recompute: str, *, gated: bool) -> frozenset[str]:
    """Names of what forward keeps for backward, as `parallel/activation_checkpointing.py` says, and the input."""
    if recompute == "full":
        return frozenset()
    if recompute == "selective":
        # Attention, and every second product: the first, the third, and of a gated MLP the fifth as well.
        return frozenset({"qkv", "mixed", "gate", "fifth"} if gated else {"qkv", "mixed", "up"})
    return EVERYTHING


EVERYTHING = frozenset(
    {"normed", "qkv", "rotated", "mixed", "scores", "middle", "normed_2", "gate", "silu", "up", "inner", "masks"}
)


def replay_forward(
    live: LiveTensors, sizes: BlockActivationBytes, keep: frozenset[str], observer: MatrixObserver
) -> None:
    """Of a block whose input is there; its output is not part of it."""

    def drop_unneeded(*names: str) -> None:
        live.drop(*(name for name in names if name not in keep))

    *inputs, out = (matrix.name for matrix in sizes.block.attention)
    *gate, up, down = (matrix.name for matrix in sizes.block.mlp)
    live.allocate("uncast", sizes.uncast)
    live.allocate("normed", sizes.normed)
    for name in inputs:
        observer.on_forward(name)
    live.allocate("qkv", sizes.qkv)
    if not sizes.block.parallel_residual:
        live.drop("uncast")
        drop_unneeded("normed")
    if sizes.rotated:
        live.allocate("turning", 4 * sizes.rotated)  # fp32: both halves, and put together
        live.allocate("rotated", sizes.rotated)
        live.drop("turning")
    live.allocate("scores", sizes.plain)
    live.allocate("mixed", sizes.mixed)
    drop_unneeded("qkv", "rotated", "scores")
    observer.on_forward(out)
    live.allocate("attended", sizes.branch)
    drop_unneeded("mixed")
    live.allocate("masks", 2 * sizes.mask)
    live.allocate("middle", sizes.middle)
    live.drop("attended")
    live.allocate("uncast", sizes.uncast)
    live.allocate("normed_2", sizes.normed_2)
    if sizes.block.gated:
        observer.on_forward(gate[0])
        live.allocate("gate", sizes.inner)
        live.allocate("silu", sizes.inner)
        drop_unneeded("gate")
    observer.on_forward(up)
    live.allocate("up", sizes.inner)
    if not sizes.block.gated:
        live.drop("uncast")
        drop_unneeded("normed_2")
    live.allocate("inner", sizes.inner)
    drop_unneeded("normed", "normed_2", "up", "silu")
    observer.on_forward(down)
    live.drop("uncast")


def replay_backward(live: LiveTensors, sizes: BlockActivationBytes, observer: MatrixObserver) -> None:
    """Of a block of which everything is there, and the gradient of its output; that of its input takes its place."""
    *gate, up, down = (matrix.name for matrix in sizes.block.mlp)
    live.allocate("g_branch", sizes.branch if sizes.uncast else 0)
    live.allocate("g_inner", sizes.inner)
    observer.on_gradient(down)
    live.drop("inner", "fifth", "g_branch")
    observer.on_backward_done(down)
    live.allocate("g_up", sizes.inner)
    if sizes.block.gated:
        live.allocate("g_silu", sizes.inner)
        live.drop("g_inner", "silu", "up")
        live.allocate("g_gate", sizes.inner)
        live.drop("g_silu", "gate")
    live.drop("g_inner", "up")
    live.allocate("g_normed", sizes.branch)
    observer.on_gradient(up)
    live.drop("g_up")
    _uncast_gradient(live, sizes)
    observer.on_backward_done(up)
    if sizes.block.gated:
        live.allocate("g_normed_gate", sizes.branch)
        observer.on_gradient(gate[0])
        live.drop("g_gate")
        live.allocate("g_uncast_gate", sizes.uncast)
        live.drop("g_normed_gate")
        live.drop("g_uncast_gate")
        observer.on_backward_done(gate[0])
    live.drop("normed_2")
    live.allocate("g_middle", sizes.hidden)
    live.drop("g_normed", "g_uncast", "middle", "g_middle", "masks")
    _attention_backward(live, sizes, observer)


def _uncast_gradient(live: LiveTensors, sizes: BlockActivationBytes) -> None:
    """Of what autocast has copied."""
    if sizes.uncast:
        live.allocate("g_uncast", sizes.uncast)
        live.drop("g_normed")


def _attention_backward(live: LiveTensors, sizes: BlockActivationBytes, observer: MatrixObserver) -> None:
    *inputs, out = (matrix.name for matrix in sizes.block.attention)
    live.allocate("g_branch", sizes.branch if sizes.uncast else 0)
    live.allocate("g_mixed", sizes.mixed)
    observer.on_gradient(out)
    live.drop("g_branch")
    observer.on_backward_done(out)
    live.allocate("g_scores", 2 * sizes.plain)
    live.allocate("g_heads", sizes.qkv)
    live.drop("mixed", "rotated", "g_mixed", "scores", "g_scores")
    if not sizes.rotated:
        live.drop("qkv")
    live.allocate("g_rotated", 5 * sizes.rotated)
    live.drop("g_rotated", "qkv")
    live.allocate("g_qkv", sizes.qkv)
    live.drop("g_heads")
    live.allocate("g_normed", sizes.branch)
    for name in reversed(inputs):
        observer.on_gradient(name)
    live.drop("g_qkv", "normed")
    _uncast_gradient(live, sizes)
    for name in reversed(inputs):
        observer.on_backward_done(name)
    live.allocate("g_input", sizes.hidden)
    live.drop("g_normed", "g_uncast", "g_input")


@dataclass(frozen=True)
class LossBytes:
    """Bytes of the tensors of a head, which computes both gradients with the loss."""

    hidden: int
    """Residual stream of the tokens whose loss the rank computes."""
    scaled: int
    """Its gradient in fp32, where that is another type."""
    logits: int
    """A chunk's, in the type that computes and in fp32."""
    weight_gradient: int
    """In the type that computes."""
    added_up: int
    """In fp32."""
    uncast: int
    """By autocast: the normed residual stream in fp32."""
    weight: int
    """And a copy of the weight."""

    @classmethod
    def of(cls, workload: Workload) -> "LossBytes":
        model, train = workload.model, workload.train
        width, tokens = WIDTH[train.param_dtype], workload.tokens_per_pass // workload.parallel.tensor
        chunk = min(train.loss_chunk_tokens or tokens, tokens)
        weight = model.vocab_size * model.d_model
        return cls(
            hidden=width * tokens * model.d_model,
            scaled=4 * tokens * model.d_model,
            logits=(width + 4) * chunk * model.vocab_size,
            weight_gradient=width * weight,
            added_up=4 * weight,
            uncast=4 * tokens * model.d_model if workload.autocasts else 0,
            weight=width * weight if workload.autocasts else 0,
        )

    def replay_forward(self, accumulator: MemoryAccumulator) -> None:
        """What is there at the end is for backward."""
        normed = self.hidden + self.uncast
        accumulator.allocate("activations", normed)
        accumulator.allocate("gathered", self.weight)
        accumulator.allocate("logits", self.logits)
        accumulator.allocate("logits", self.hidden + self.added_up)
        accumulator.allocate("logits", self.weight_gradient)  # a chunk's
        accumulator.free("logits", self.weight_gradient)
        accumulator.free("logits", self.logits)
        accumulator.free("gathered", self.weight)
        accumulator.free("activations", normed)

    def replay_backward(self, accumulator: MemoryAccumulator) -> None:
        """Leaves the gradient of the weight."""
        cast = self.added_up != self.weight_gradient
        both = self.scaled + (self.hidden if cast else 0)
        accumulator.allocate("logits", both)
        accumulator.allocate("logits", self.added_up)
        if not cast:
            accumulator.free("logits", self.added_up)
        accumulator.allocate("gradients", self.weight_gradient)
        accumulator.free("logits", both + self.hidden + self.added_up * (2 if cast else 1))
