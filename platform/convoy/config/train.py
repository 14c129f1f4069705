"""The training loop: batches, precision, memory techniques, guards."""

from typing import Literal

from pydantic import Field

from convoy.config.base import Frozen

ParamDtype = Literal["bf16", "fp32"]
"""Number format of parameters and activations in forward and backward."""


class TrainConfig(Frozen):
    """What one step is and how many there are."""

    steps: int = Field(500, ge=1)
    """Optimizer steps of the whole job; raise it to let a finished job go on."""
    global_batch: int = Field(8, ge=1, le=2**20)
    """Sequences per optimizer step over all ranks; fixed for the job, need not be a multiple of the ranks."""
    micro_batch: int = Field(8, ge=1)
    """At most this many sequences per forward pass and rank; passes are evened out."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Of the initial weights, the sample order and dropout; fixed for the job."""
    param_dtype: Literal["auto", "bf16", "fp32"] = "auto"
    """Type of parameters and activations in forward and backward; master weights are always fp32. `auto`: bf16 on GPUs;
    on a CPU, whichever of the two multiplies matrices of the job's own sizes faster, which is measured when the job
    first starts and then stays with the job."""
    reduce_dtype: Literal["bf16", "fp32"] = "fp32"
    """Type in which gradients are reduced over ranks; for those that share products, see `parallel.tensor`."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """Recompute in backward: nothing, all but every second matmul and attention, or whole blocks."""
    attention: Literal["fused", "plain"] = "fused"
    """`fused`: by a kernel that keeps no matrix of scores; `plain`: as the formula is written, to compare with."""
    compile: bool = False
    """`torch.compile` each block."""
    loss_chunk_tokens: int = Field(512, ge=0)
    """Tokens whose logits exist at a time in the loss; 0 keeps all of a micro batch's logits."""
    clip_norm: float | None = Field(1.0, gt=0)
    """Largest global gradient norm; null does not clip."""
    max_nonfinite_steps: int = Field(5, ge=1)
    """Stop after this many steps in a row whose loss or gradient is not finite (each is skipped)."""
    prefetch_steps: int = Field(2, ge=0)
    """So many steps' batches are made ahead, by one thread: a batch is cut from tokens that lie in memory, and needs no
    further workers. 0 makes each when it is needed."""
    log_every_steps: int = Field(1, ge=1)
    """Append a step event each time this many steps are done."""
    threads_per_rank: int | None = Field(None, ge=1)
    """Intra-op CPU threads of a rank. Default: the host's cores divided by its ranks."""
    node_check_seconds: float = Field(0.1, ge=0)
    """Time spent before an attempt's first step to find a machine that is far slower than the others, about; 0 skips
    it."""
    matmul_peak_seconds: float = Field(0.3, ge=0)
    """Time spent after the first step to measure the rate of a plain matmul on all ranks at once; 0 skips it. A job's
    first start spends as much again, and with several ranks a second or two more, on what the planner needs
    of machines that the catalog does not know: rates at the job's own sizes, and collectives."""
