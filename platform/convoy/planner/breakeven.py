"""How many tokens a pass needs so that its computation takes as long as what is sent between machines for it.

Both grow with the parameters, so that their ratio does not depend on the model: each pass over a micro batch sends some
bytes per parameter into each machine, and computes 6 operations per parameter and token on each GPU, or 8 with all of
forward done again. With fewer tokens the network is what a step takes; with more it can be hidden.
"""

from dataclasses import dataclass

BYTES = {"bf16": 2, "fp32": 4}

FLOPS_PER_PARAMETER = 6
"""Of a token: 2 forward, 4 backward."""

RECOMPUTED_FLOPS_PER_PARAMETER = 2
"""More, where all of forward is done again for backward."""


@dataclass(frozen=True)
class Sending:
    """What the ranks of all machines send each other in a step, by how parameters and gradients are kept."""

    gathers: float
    """Of all parameters, in each pass."""
    scatters: float
    """Of all gradients, in each pass; the scatter and the gather of an all-reduce are two."""

    def bytes_per_parameter(self, param_dtype: str = "bf16", reduce_dtype: str = "fp32") -> float:
        """That enter a machine in a pass; with N machines all but 1/N of it."""
        return self.gathers * BYTES[param_dtype] + self.scatters * BYTES[reduce_dtype]


def sharded(passes: int = 1, reshard: bool = True, reduce_every_pass: bool = True) -> Sending:
    """FSDP over all ranks: gathered for forward and, where it was freed since, for backward."""
    return Sending(2 if reshard else 1, 1 if reduce_every_pass else 1 / passes)


def replicated(passes: int = 1) -> Sending:
    """HSDP with whole machines as shards, or DDP: between machines gradients alone, all-reduced once a step."""
    return Sending(0, 2 / passes)


def break_even_tokens(
    bytes_per_parameter: float,
    bytes_per_second: float,
    flops_per_second: float,
    flops_per_parameter: float = FLOPS_PER_PARAMETER,
) -> float:
    """Tokens of a GPU and pass, t = (bytes / BW) / (FLOPs / rate).

    bytes_per_second: into a machine, of all its GPUs together. flops_per_second: of one GPU, as matrix products reach
    it: its peak times their efficiency.
    """
    return bytes_per_parameter / bytes_per_second / (flops_per_parameter / flops_per_second)
