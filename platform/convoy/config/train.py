"""The training loop: batches, precision, memory techniques, guards."""

import math
from typing import Literal

from pydantic import Field, model_validator

from convoy.config.base import FrozenConfig

ParamDtype = Literal["bf16", "fp32"]
"""Number format of parameters and activations in forward and backward."""


class TrainConfig(FrozenConfig):
    """What one step is and how many there are."""

    steps: int = Field(500, ge=1)
    """Optimizer steps of the whole job; raise it to continue a finished job."""
    global_batch: int = Field(8, ge=1, le=2**20)
    """Sequences per optimizer step over all ranks; fixed for the job, need not be a multiple of the ranks."""
    micro_batch: int = Field(8, ge=1)
    """At most this many sequences per forward pass and rank; passes are evened out."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the initial weights, the sample order and dropout; fixed for the job."""
    param_dtype: Literal["auto", "bf16", "fp32"] = "auto"
    """Type of parameters and activations in forward and backward; master weights are always fp32. `auto`: bf16 on GPUs;
    on a CPU, the one that multiplies matrices of the job's own sizes faster, which is measured when the job first
    starts and is then fixed for the job."""
    reduce_dtype: Literal["bf16", "fp32"] = "fp32"
    """Type in which gradients are reduced over ranks; for ranks that share products, see `parallel.tensor`."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """Recompute in backward: nothing, all but every second matmul and attention, or whole blocks."""
    attention: Literal["fused", "plain"] = "fused"
    """`fused`: a kernel that keeps no matrix of scores; `plain`: the formula as written, for comparison."""
    compile: bool = False
    """`torch.compile` each block."""
    loss_chunk_tokens: int = Field(512, ge=0)
    """Tokens whose logits exist at a time in the loss; 0 keeps all of a micro batch's logits."""
    clip_norm: float | None = Field(1.0, gt=0)
    """Largest global gradient norm; null does not clip."""
    max_nonfinite_steps: int = Field(5, ge=1)
    """Stop after this many steps in a row whose loss or gradient is not finite (each is skipped)."""
    prefetch_steps: int = Field(2, ge=0)
    """Steps whose batches one thread makes ahead. A batch is a slice of tokens in memory, so more workers would not
    help. 0 makes each batch when it is needed."""
    log_every_steps: int = Field(1, ge=1)
    """Append a step event every this many steps."""
    threads_per_rank: int | None = Field(None, ge=1)
    """Intra-op CPU threads of a rank. Default: the host's cores divided by its ranks."""
    node_check_seconds: float = Field(0.1, ge=0)
    """Approximate time spent before an attempt's first step to detect a machine that is far slower than the others; 0
    skips it."""
    matmul_peak_seconds: float = Field(0.3, ge=0)
    """Time spent after the first step to measure the rate of a plain matmul on all ranks at once; 0 skips it. A job's
    first start spends the same time again, and with several ranks a second or two more, on what the planner needs for
    machines that the catalog does not have: rates at the job's own sizes, and collectives."""


def split_batch(count: int, ranks: int, micro_batch: int) -> tuple[int, int]:
    """Passes of a step, and sequences of each, on the rank with most of `count`; `micro_batch` is a maximum."""
    most = math.ceil(count / ranks)
    passes = math.ceil(most / micro_batch)
    return passes, math.ceil(most / passes)


class OptimizerConfig(FrozenConfig):
    """AdamW (Loshchilov and Hutter, 2019) over fp32 master weights."""

    lr: float = Field(3e-3, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the first and second moment."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(0.1, ge=0)
    """Decoupled decay of matrices; vectors (norms and biases) are not decayed."""
    decay_embeddings: bool = True
    """Decay token and position embeddings too."""
    fused: bool = True
    """One fused kernel per group of parameters."""

    @model_validator(mode="after")
    def _betas_below_one(self) -> "OptimizerConfig":
        if not all(0 <= b < 1 for b in self.betas):
            raise ValueError(f"betas = {list(self.betas)}: each must be at least 0 and below 1")
        return self


class ScheduleConfig(FrozenConfig):
    """Linear warm-up, then a decay to a share of the peak."""

    kind: Literal["cosine", "linear", "constant"] = "cosine"
    """Shape of the decay after warm-up."""
    warmup_steps: int = Field(30, ge=0)
    """Steps from zero to the peak."""
    decay_steps: int | None = Field(None, ge=1)
    """Step at which the decay ends, warm-up included. Default: `train.steps`; raising that raises the rate again."""
    final_fraction: float = Field(0.1, ge=0, le=1)
    """Learning rate after the decay, as a share of the peak."""


class EvaluationConfig(FrozenConfig):
    """When the model is evaluated, and on how much."""

    every_steps: int = Field(125, ge=1)
    """Evaluate at each multiple of this many steps, at step 0 and at the last step. A notice that ends the attempt cuts
    it short."""
    sequences: int = Field(64, ge=1)
    """Held-out sequences per evaluation, the same each time."""
    prompts: tuple[str, ...] = ("def main(", "import ", "class Test")
    """Texts that the trained model continues on the final card."""
    sample_tokens: int = Field(64, ge=0)
    """New tokens per prompt; 0 generates none."""
    temperature: float = Field(0.8, ge=0)
    """Temperature of sampling; 0 is greedy."""


class BudgetConfig(FrozenConfig):
    """Limits over all generations of the job."""

    max_hours: float | None = Field(None, gt=0)
    """Limit on gang time, in hours."""
    max_cost_usd: float | None = Field(None, gt=0)
    """Limit on the cost of instance time, in US dollars, at the run's price (`cluster.price`, or the newest known
    one)."""


class ReportConfig(FrozenConfig):
    """How often the live card is redrawn."""

    card_refresh_seconds: float = Field(15, ge=1)
    """Shortest time between two live cards; each costs about a second of one CPU core."""


class NoticesConfig(FrozenConfig):
    """What a notice does. A notice that says when the machine will be reclaimed always ends the attempt, with a save if
    there is time."""

    rebalance: Literal["ignore", "save", "drain"] = "save"
    """Reaction to EC2's rebalance recommendation, which may precede a spot notice: none, save and continue, or save and
    end the attempt."""
    deadline_seconds: float = Field(30.0, gt=0, le=3600)
    """Assumed time until the machine is gone, after a notice that does not state it, such as SIGTERM."""
    poll_seconds: float = Field(1.0, ge=0.1, le=60)
    """Interval at which each source of notices is polled."""
