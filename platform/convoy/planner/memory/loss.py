"""What the head and its loss take: `model/loss.py`, tensor by tensor."""

from dataclasses import dataclass

from convoy.planner.memory.tally import Tally
from convoy.planner.step.fsdp_units import WIDTH
from convoy.planner.workload import Workload


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
