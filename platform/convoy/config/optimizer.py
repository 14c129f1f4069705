"""AdamW and the learning-rate schedule."""

from typing import Literal

from pydantic import Field, model_validator

from convoy.config.base import Frozen


class OptimizerConfig(Frozen):
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


class ScheduleConfig(Frozen):
    """Linear warm-up, then a decay to a share of the peak."""

    kind: Literal["cosine", "linear", "constant"] = "cosine"
    """Shape of the decay after warm-up."""
    warmup_steps: int = Field(30, ge=0)
    """Steps from zero to the peak."""
    decay_steps: int | None = Field(None, ge=1)
    """Step at which the decay ends, warm-up included. Default: `train.steps`; raising that raises the rate again."""
    final_fraction: float = Field(0.1, ge=0, le=1)
    """Learning rate after the decay, as a share of the peak."""
