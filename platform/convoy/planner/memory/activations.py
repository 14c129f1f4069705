"""What a decoder block keeps of its forward, and what its backward takes on top, tensor by tensor; and the head's loss.

Read off `model/dense/modules.py` and `model/loss.py`, and off what autograd saves for each of their operators;
attention is one kernel that keeps its inputs, its output, and one fp32 number for each head and token. Not compiled: a
compiled block keeps no more.
"""

from dataclasses import dataclass
from typing import Protocol

from convoy.model.block import Block
from convoy.model.families import block_of
from convoy.planner.memory.tally import Live, Tally
from convoy.planner.step.fsdp_units import WIDTH
from convoy.planner.workload import Workload


class Weights(Protocol):
    """Receives when a matrix of a block is at work, by its name."""

    def forward(self, name: str) -> None:
        """It is about to be multiplied."""

    def gradient(self, name: str) -> None:
        """Its gradient is made."""

    def done(self, name: str) -> None:
        """Its backward is over."""


@dataclass(frozen=True)
class BlockActivationBytes:
    """Bytes of the tensors of a block, of one pass of one rank."""

    block: Block
    hidden: int
    """The residual stream."""
    middle: int
    """Of the residual stream between attention and the MLP; 0: both read the same norm."""
    normed: int
    """After a norm, with what the norm saves next to its input."""
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
        hidden = width * tokens * model.d_model
        normed = hidden + 4 * tokens * (2 if model.norm == "layernorm" else 1)
        scores = tokens * heads * workload.sequence_length
        return cls(
            block=block,
            hidden=hidden,
            middle=0 if block.parallel else hidden,
            normed=normed,
            normed_2=0 if block.parallel else normed,
            qkv=width * tokens * sum(matrix.rows // cut for matrix in block.attention[:-1]),
            rotated=width * tokens * (heads + shared) * head if block.rotary else 0,
            mixed=width * tokens * heads * head + 4 * tokens * heads,
            inner=width * tokens * (block.inner_width // cut),
            mask=tokens * model.d_model if model.dropout else 0,
            plain=scores * 4 if train.attention == "plain" else 0,
        )


def saved(mode: str, *, gated: bool) -> frozenset[str]:
    """Names of what forward keeps for backward, as `parallel/fsdp.py` has it; the input always is."""
    if mode == "full":
        return frozenset()
    if mode == "selective":
        # Attention, and every second product: the first, the third, and of a gated MLP the fifth as well.
        return frozenset({"qkv", "mixed", "gate", "fifth"} if gated else {"qkv", "mixed", "up"})
    return EVERYTHING


EVERYTHING = frozenset(
    {"normed", "qkv", "rotated", "mixed", "scores", "middle", "normed_2", "gate", "silu", "up", "inner", "masks"}
)


def forward(live: Live, sizes: BlockActivationBytes, keep: frozenset[str], weights: Weights) -> None:
    """Of a block whose input is there; its output is not part of it."""

    def done_with(*names: str) -> None:
        live.drop(*(name for name in names if name not in keep))

    *inputs, out = (matrix.name for matrix in sizes.block.attention)
    *gate, up, down = (matrix.name for matrix in sizes.block.mlp)
    live.take("normed", sizes.normed)
    for name in inputs:
        weights.forward(name)
    live.take("qkv", sizes.qkv)
    if not sizes.block.parallel:
        done_with("normed")
    if sizes.rotated:
        live.take("turning", 4 * sizes.rotated)  # fp32: both halves, and put together
        live.take("rotated", sizes.rotated)
        live.drop("turning")
    live.take("scores", sizes.plain)
    live.take("mixed", sizes.mixed)
    done_with("qkv", "rotated", "scores")
    weights.forward(out)
    live.take("attended", sizes.hidden)
    done_with("mixed")
    live.take("masks", 2 * sizes.mask)
    live.take("middle", sizes.middle)
    live.drop("attended")
    live.take("normed_2", sizes.normed_2)
    if sizes.block.gated:
        weights.forward(gate[0])
        live.take("gate", sizes.inner)
        live.take("silu", sizes.inner)
        done_with("gate")
    weights.forward(up)
    live.take("up", sizes.inner)
    if not sizes.block.gated:
        done_with("normed_2")
    live.take("inner", sizes.inner)
    done_with("normed", "normed_2", "up", "silu")
    weights.forward(down)


def backward(live: Live, sizes: BlockActivationBytes, weights: Weights) -> None:
    """Of a block of which everything is there, and the gradient of its output; that of its input takes its place."""
    *gate, up, down = (matrix.name for matrix in sizes.block.mlp)
    live.take("g_inner", sizes.inner)
    weights.gradient(down)
    live.drop("inner", "fifth")
    weights.done(down)
    live.take("g_up", sizes.inner)
    if sizes.block.gated:
        live.take("g_silu", sizes.inner)
        live.drop("g_inner", "silu", "up")
        live.take("g_gate", sizes.inner)
        live.drop("g_silu", "gate")
    live.drop("g_inner", "up")
    live.take("g_normed", sizes.hidden)
    weights.gradient(up)
    live.drop("g_up")
    weights.done(up)
    if sizes.block.gated:
        live.take("g_normed_gate", sizes.hidden)
        weights.gradient(gate[0])
        live.drop("g_gate", "g_normed_gate")
        weights.done(gate[0])
    live.drop("normed_2")
    live.take("g_middle", sizes.hidden)
    live.drop("g_normed", "middle", "g_middle", "masks")
    _attention_backward(live, sizes, weights)


def _attention_backward(live: Live, sizes: BlockActivationBytes, weights: Weights) -> None:
    *inputs, out = (matrix.name for matrix in sizes.block.attention)
    live.take("g_mixed", sizes.mixed)
    weights.gradient(out)
    weights.done(out)
    live.take("g_scores", 2 * sizes.plain)
    live.take("g_heads", sizes.qkv)
    live.drop("mixed", "rotated", "g_mixed", "scores", "g_scores")
    if not sizes.rotated:
        live.drop("qkv")
    live.take("g_rotated", 5 * sizes.rotated)
    live.drop("g_rotated", "qkv")
    live.take("g_qkv", sizes.qkv)
    live.drop("g_heads")
    live.take("g_normed", sizes.hidden)
    for name in reversed(inputs):
        weights.gradient(name)
    live.drop("g_qkv", "normed")
    for name in reversed(inputs):
        weights.done(name)
    live.take("g_input", sizes.hidden)
    live.drop("g_normed", "g_input")


@dataclass(frozen=True)
class Loss:
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

    @classmethod
    def of(cls, workload: Workload) -> "Loss":
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
        )

    def forward(self, tally: Tally) -> None:
        """What is there at the end is for backward."""
        normed = self.hidden
        tally.take("activations", normed)
        tally.take("logits", self.logits)
        tally.take("logits", self.hidden + self.added_up)
        tally.take("logits", self.weight_gradient)  # a chunk's
        tally.give("logits", self.weight_gradient)
        tally.give("logits", self.logits)
        tally.give("activations", normed)

    def backward(self, tally: Tally) -> None:
        """Leaves the gradient of the weight."""
        cast = self.added_up != self.weight_gradient
        both = self.scaled + (self.hidden if cast else 0)
        tally.take("logits", both)
        tally.take("logits", self.added_up)
        if not cast:
            tally.give("logits", self.added_up)
        tally.take("gradients", self.weight_gradient)
        tally.give("logits", both + self.hidden + self.added_up * (2 if cast else 1))
