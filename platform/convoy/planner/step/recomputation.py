"""What the backward pass makes again of a block, in shares of its forward pass, as torch's checkpoint does it.

torch computes a block again only as far as backward needs something of it: the last product's result is needed by
nobody, so that product is not made again, nor is the residual behind it. Equal to what torch's FlopCounterMode counts
of the code that trains: tests/planner/step/test_recomputation.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Again:
    """Shares of one block's forward pass."""

    matmul: float
    """Of the operations of its linear layers."""
    attention: float
    rest: float
    """Of the bytes that are moved between products, and taken to be that of kernels."""

    def times(self, share: float) -> "Again":
        """Of so many of the blocks, taken over all of them."""
        return Again(self.matmul * share, self.attention * share, self.rest * share)


def again(
    mode: Literal["none", "selective", "full"],
    products: Sequence[int],
    moved: Mapping[str, float],
    *,
    plain: bool,
    to_the_end: bool,
) -> Again:
    """products: operations of each linear layer, in forward's order, in any unit. moved: bytes of `norms`, `residuals`,
    `attention` and more. plain: attention is products that selective mode does not keep. to_the_end: backward needs
    something behind the last product.

    `selective` keeps the first, third, fifth and seventh product, and fused attention: see
    `parallel/activation_checkpoint.py`.
    """
    if mode == "none":
        return Again(0.0, 0.0, 0.0)
    needed = len(products) - (0 if to_the_end else 1)
    made = range(needed) if mode == "full" else range(1, needed, 2)
    attention = 1.0 if mode == "full" or plain else 0.0
    spared = (0.0 if to_the_end else moved["residuals"] / 2) + (1 - attention) * moved["attention"]
    return Again(
        matmul=sum(products[i] for i in made) / sum(products),
        attention=attention,
        rest=1 - spared / sum(moved.values()),
    )
