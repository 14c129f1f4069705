"""What only some machines have, and a variant may need. Imports no torch."""

from typing import Literal

Need = Literal["gpu", "fa3"]

GPU: Need = "gpu"
FA3: Need = "fa3"

HOPPER = (9, 0)
"""Compute capability of the GPUs that FlashAttention-3 is written for."""


def lacking(needs: Need | None, capability: tuple[int, int] | None) -> str:
    """Why a variant cannot be measured; empty: it can. capability: of the GPU, by CUDA; None: there is none."""
    match needs:
        case "gpu" if capability is None:
            return "there is no GPU: everything is in host memory already"
        case "fa3" if capability != HOPPER:
            return "there is no Hopper GPU, which it is written for"
        case "fa3":
            return "torch takes it for a whole process, where it cannot take turns with what it is compared with"
    return ""
